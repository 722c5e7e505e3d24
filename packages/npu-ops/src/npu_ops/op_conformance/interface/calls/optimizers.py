"""One step of an optimizer as a function: torch's own, with its states as arguments.

Each writes the parameter, which is returned, and its states in place. All tensors have the
parameter's shape; `step` counts from 1, this step included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import adadelta as _adadelta
from torch.optim import adagrad as _adagrad
from torch.optim import adam as _adam
from torch.optim import rmsprop as _rmsprop
from torch.optim import sgd as _sgd

__all__ = [
    "adadelta",
    "adagrad",
    "adam",
    "adamw",
    "clip_grad_norm",
    "fused_adamw",
    "rmsprop",
    "sgd",
]

_ADAM_STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
_ADAM_OPTIONS = {
    "lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False,
}  # fmt: skip


def _optimizer(
    step_of: Callable[..., None], states: tuple[str, ...], options: dict[str, Any], **fixed: Any
) -> Callable[..., torch.Tensor]:
    """Returns a step `(param, grad, *states, *options) -> param` around torch's functional one.

    Args:
        step_of: torch's, which takes lists of tensors, one for each parameter.
        states: names of the tensors after the gradient. `step` is a number, from which the tensor
            that torch adds to is made.
        options: names with defaults; None for an option that must be given.
        fixed: further arguments of torch's function.
    """
    names = [*states, *options]

    def run(param: torch.Tensor, grad: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        if len(given) > len(names) or not named.keys() <= set(names[len(given) :]):
            raise TypeError(f"expected param, grad, {', '.join(names)}; got {given}, {named}")
        values = options | dict(zip(names, given, strict=False)) | named
        lists = [[values.pop(state)] for state in states]
        if "step" in states:
            # The step before this one; a fused kernel wants it on the parameter's device.
            device = param.device if fixed.get("fused") else "cpu"
            (step,) = lists[states.index("step")]
            lists[states.index("step")] = [torch.tensor(float(step - 1), device=device)]
        elif step_of is not _sgd.sgd:
            lists.append([torch.tensor(0.0)])
        if "amsgrad" in options and not values["amsgrad"]:
            lists[states.index("max_exp_avg_sq")] = []
        step_of([param], [grad], *lists, foreach=False, maximize=False, **values, **fixed)
        return param

    return run


sgd = _optimizer(
    _sgd.sgd,
    ("momentum_buffer",),
    {"lr": None, "momentum": 0.0, "weight_decay": 0.0, "dampening": 0.0, "nesterov": False},
    fused=False,
)
adam = _optimizer(_adam.adam, _ADAM_STATES, _ADAM_OPTIONS, fused=False)
# AdamW takes the weight's decay out of the gradient.
adamw = _optimizer(
    _adam.adam, _ADAM_STATES, _ADAM_OPTIONS, fused=False, decoupled_weight_decay=True
)
fused_adamw = _optimizer(
    _adam.adam, _ADAM_STATES, _ADAM_OPTIONS, fused=True, decoupled_weight_decay=True
)
adadelta = _optimizer(
    _adadelta.adadelta,
    ("square_avg", "acc_delta"),
    {"lr": None, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0},
)
adagrad = _optimizer(
    _adagrad.adagrad,
    ("state_sum", "step"),
    {"lr": None, "eps": 1e-10, "weight_decay": 0.0},
    lr_decay=0.0,
)
rmsprop = _optimizer(
    _rmsprop.rmsprop,
    ("square_avg", "grad_avg", "momentum_buffer"),
    {
        "lr": None, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0,
        "centered": False,
    },
)  # fmt: skip


def clip_grad_norm(
    grads: list[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` on gradients, which are scaled in place.

    Returns:
        The norm before, of no dimensions.
    """
    parameters = [torch.empty_like(grad).requires_grad_() for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

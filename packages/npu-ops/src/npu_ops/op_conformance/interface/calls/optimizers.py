"""One step of an optimizer as a function: torch's own, with its states as arguments.

Each writes the parameter, which is returned, and its states in place. All tensors have the
parameter's shape; `step` counts from 1, this step included.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import adadelta as _adadelta
from torch.optim import adagrad as _adagrad
from torch.optim import adam as _adam
from torch.optim import adamw as _adamw
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


def sgd(
    param: torch.Tensor,
    grad: torch.Tensor,
    momentum_buffer: torch.Tensor,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
) -> torch.Tensor:
    """A step of `torch.optim.SGD`."""
    _sgd.sgd(
        [param],
        [grad],
        [momentum_buffer],
        foreach=False,
        fused=False,
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=dampening,
        nesterov=nesterov,
        maximize=False,
    )
    return param


def adam(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    max_exp_avg_sq: torch.Tensor,
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    *,
    decouples: bool = False,
    fused: bool = False,
) -> torch.Tensor:
    """A step of `torch.optim.Adam`.

    `decouples` takes the weight's decay out of the gradient, as AdamW does; `fused` calls torch's
    fused kernel.
    """
    # The step before this one, which the function adds to; a fused kernel wants it on the device.
    steps = torch.tensor(float(step - 1), device=param.device if fused else "cpu")
    (_adamw.adamw if decouples else _adam.adam)(
        [param],
        [grad],
        [exp_avg],
        [exp_avg_sq],
        [max_exp_avg_sq] if amsgrad else [],
        [steps],
        foreach=False,
        fused=fused,
        amsgrad=amsgrad,
        beta1=beta1,
        beta2=beta2,
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
    )
    return param


def adamw(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    max_exp_avg_sq: torch.Tensor,
    step: int,
    lr: float,
    *options: Any,
) -> torch.Tensor:
    """A step of `torch.optim.AdamW`; options as of `adam`."""
    states = (exp_avg, exp_avg_sq, max_exp_avg_sq)
    return adam(param, grad, *states, step, lr, *options, decouples=True)


def fused_adamw(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    max_exp_avg_sq: torch.Tensor,
    step: int,
    lr: float,
    *options: Any,
) -> torch.Tensor:
    """A step of `torch.optim.AdamW(fused=True)`; options as of `adam`."""
    states = (exp_avg, exp_avg_sq, max_exp_avg_sq)
    return adam(param, grad, *states, step, lr, *options, decouples=True, fused=True)


def adadelta(
    param: torch.Tensor,
    grad: torch.Tensor,
    square_avg: torch.Tensor,
    acc_delta: torch.Tensor,
    lr: float,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> torch.Tensor:
    """A step of `torch.optim.Adadelta`."""
    _adadelta.adadelta(
        [param],
        [grad],
        [square_avg],
        [acc_delta],
        [torch.tensor(0.0)],
        foreach=False,
        lr=lr,
        rho=rho,
        eps=eps,
        weight_decay=weight_decay,
        maximize=False,
    )
    return param


def adagrad(
    param: torch.Tensor,
    grad: torch.Tensor,
    state_sum: torch.Tensor,
    step: int,
    lr: float,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
) -> torch.Tensor:
    """A step of `torch.optim.Adagrad`."""
    _adagrad.adagrad(
        [param],
        [grad],
        [state_sum],
        [torch.tensor(float(step - 1))],
        foreach=False,
        lr=lr,
        weight_decay=weight_decay,
        lr_decay=0.0,
        eps=eps,
        maximize=False,
    )
    return param


def rmsprop(
    param: torch.Tensor,
    grad: torch.Tensor,
    square_avg: torch.Tensor,
    grad_avg: torch.Tensor,
    momentum_buffer: torch.Tensor,
    lr: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
) -> torch.Tensor:
    """A step of `torch.optim.RMSprop`."""
    _rmsprop.rmsprop(
        [param],
        [grad],
        [square_avg],
        [grad_avg],
        [momentum_buffer],
        [torch.tensor(0.0)],
        foreach=False,
        lr=lr,
        alpha=alpha,
        eps=eps,
        weight_decay=weight_decay,
        momentum=momentum,
        centered=centered,
        maximize=False,
    )
    return param


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

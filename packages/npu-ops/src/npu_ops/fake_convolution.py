"""Strides of convolutions on npu in torch's fake tensors, which use a table of known devices.

The native kernels lay out results like the CPU's: channels last if an input is.
"""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from npu_command.import_hooks import when_imported

__all__ = ["register"]


def register() -> None:
    """Patches the rule after fake tensors were imported; imports nothing itself."""
    when_imported("torch._subclasses.fake_impls", _register)


def _register() -> None:
    from torch._subclasses import fake_impls

    aten = torch.ops.aten
    for op in (
        aten.convolution.default,
        aten._convolution.default,
        aten.convolution_backward.default,
    ):
        general = fake_impls.op_implementations_dict[op]
        fake_impls._deregister_op_impl(op)
        fake_impls.register_op_impl(op)(_as_on_cpu(general))


def _as_on_cpu(general: Any) -> Any:
    """Returns the general rule's result for cpu tensors of the same layout."""

    def convolution(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        device = tensors[0].device
        if device.type != "npu":
            return general(fake_mode, func, *args, **kwargs)
        with fake_mode:
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda tensor: _twin(tensor, torch.device("cpu")), (args, kwargs)
            )
        results = general(fake_mode, func, *args, **kwargs)
        with fake_mode:
            return pytree.tree_map_only(torch.Tensor, lambda out: _twin(out, device), results)

    return convolution


def _twin(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

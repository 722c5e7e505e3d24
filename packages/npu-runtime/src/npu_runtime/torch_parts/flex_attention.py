"""``flex_attention`` on npu: past torch's list of devices, and under autocast.

Torch has no way to add a device to that list. What follows it is torch's own, for any device.
"""

import importlib
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet

__all__ = ["serve_flex_attention"]

_keys: Any = DispatchKey  # torch's stubs know few of them


def serve_flex_attention() -> None:
    """Lets npu tensors in. Call it once torch.nn.attention.flex_attention is there."""
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    on_others = module._validate_device

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "npu":
            on_others(query, key, value)

    module._validate_device = validate_device
    op = module.flex_attention_hop
    op.py_impl(_keys.AutocastPrivateUse1)(_autocast(op))


def _autocast(op: Any) -> Any:
    """The op as it is under autocast: queries, keys and values in its dtype."""
    key = DispatchKeySet(_keys.AutocastPrivateUse1)

    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        is_cast = tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if is_cast else tensor

    def under_autocast(
        query: torch.Tensor, key_: torch.Tensor, value: torch.Tensor, *others: Any
    ) -> Any:
        dtype = torch.get_autocast_dtype("npu")
        q, k, v = (cast(one, dtype) for one in (query, key_, value))
        with torch._C._ExcludeDispatchKeyGuard(key):
            return op(q, k, v, *others)

    return under_autocast

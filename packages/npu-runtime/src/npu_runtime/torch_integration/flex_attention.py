"""``flex_attention`` on npu: torch's list of devices, autocast, and compilation.

Torch does not have a hook to add a device to that list. The code after the list works for any
device.
"""

import importlib
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._subclasses.functional_tensor import FunctionalTensorMode

__all__ = ["serve_flex_attention"]

_keys: Any = DispatchKey  # Torch's stubs declare few of them.


def serve_flex_attention() -> None:
    """Accepts npu tensors. Call it after torch.nn.attention.flex_attention was imported."""
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    on_others = module._validate_device

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "npu":
            on_others(query, key, value)

    module._validate_device = validate_device
    op = module.flex_attention_hop
    op.py_impl(_keys.AutocastPrivateUse1)(_autocast(op))
    for one in (op, importlib.import_module(type(op).__module__).flex_attention_backward):
        _write_out(one)


def _write_out(op: Any) -> None:
    """Decomposes the op into the ops of attention on npu in captured graphs.

    Otherwise, Inductor would generate Triton, and other backends would run the op unchanged.
    """
    as_one_op = op.python_key_table[FunctionalTensorMode]  # graph capture, without writes
    dense = op.py_kernels[_keys.CompositeExplicitAutograd]

    def captured(mode: FunctionalTensorMode, query: torch.Tensor, *others: Any) -> Any:
        if query.device.type != "npu":
            return as_one_op(mode, query, *others)
        with mode:
            return dense(query, *others)

    op.python_key_table[FunctionalTensorMode] = captured


def _autocast(op: Any) -> Any:
    """The op under autocast: queries, keys and values in autocast's dtype."""
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

"""Torch tensors as OpenVINO constants over the same bytes, and small constants from numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch

from npu_compiler.lowering.dtypes import ov_type
from npu_runtime.npu import as_cpu

__all__ = ["MASKED", "integers", "number", "saturate", "tensor_constant"]

# What stands for "not seen" in an additive mask: the lowest float16, because float32's own minimum
# becomes -inf when a program runs in half precision, and a row of -inf becomes NaN.
MASKED = -65504.0

# numpy has no bfloat16: its bytes travel as an integer type of the same width.
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensor_constant(tensor: torch.Tensor) -> tuple[ov.Output, torch.Tensor]:
    """Makes a constant of a tensor's shape and dtype which shares the tensor's memory.

    Args:
        tensor: any shape and dtype that OpenVINO has; on npu or cpu (device memory is host memory).
            A tensor that is not contiguous is copied first.

    Returns:
        The constant's output, and the tensor whose memory it reads: OpenVINO holds no reference, so
        the caller keeps it alive as long as the model.
    """
    source = tensor.detach().contiguous()
    if source.device.type == "npu":
        source = as_cpu(source)  # waits for the device; host code may read its bytes
    shape = ov.Shape(list(source.shape))
    if source.numel() == 0:
        empty = np.empty(tuple(source.shape), dtype=np.float32)
        node = ops.constant(empty, dtype=np.float32)
        return ops.convert(node, ov_type(tensor.dtype)).output(0), source
    raw = _raw(source)
    view = ov.Tensor(raw, shape, ov_type(tensor.dtype))
    return ov.op.Constant(view, True).output(0), source


def number(value: bool | int | float, dtype: torch.dtype) -> ov.Output:
    """Makes a rank-0 constant; what is too large for the dtype becomes infinite, as in torch."""
    if dtype in (torch.bfloat16, torch.float16):
        raw = torch.tensor(value, dtype=dtype).view(torch.int16).reshape(1).numpy()
        view = ov.Tensor(raw, ov.Shape([]), ov_type(dtype))
        return ov.op.Constant(view, shared_memory=False).output(0)
    return ops.constant(value, ov_type(dtype)).output(0)


def integers(values: Sequence[int]) -> ov.Output:
    """Makes an int64 constant of shape (len(values),)."""
    return ops.constant(np.asarray(values, dtype=np.int64)).output(0)


def saturate(model: ov.Model) -> None:
    """Brings int64 constants into the range of int32, in which plugins compute them.

    A plugin that compiles saturates them, but one that loads its own compiled blob reads the
    weights' file again and cuts off the upper half: an end of 2**63 - 1 became -1 there.

    Args:
        model: changed in place.
    """
    bounds = np.iinfo(np.int32)
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.i64:
            continue
        values = node.get_data()
        if values.size == 0 or (values.min() >= bounds.min and values.max() <= bounds.max):
            continue
        inside = ops.constant(np.clip(values, bounds.min, bounds.max), ov.Type.i64)
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(inside.output(0))


def _raw(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements of a contiguous cpu tensor as a flat array over the same memory."""
    return tensor.view(-1).view(_SAME_WIDTH[tensor.element_size()]).numpy()

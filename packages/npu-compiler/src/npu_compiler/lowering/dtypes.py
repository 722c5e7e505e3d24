"""Which element type of OpenVINO stands for which torch dtype.

Precision of execution is no matter of types: npu_compiler.programs.compile_options chooses it.
"""

from __future__ import annotations

import openvino as ov
import torch

__all__ = [
    "DEVICE_DTYPES",
    "NARROW_DTYPES",
    "is_float",
    "ov_type",
    "refusal_for_dtype",
    "torch_dtype",
]

_TO_OV: dict[torch.dtype, ov.Type] = {
    torch.float32: ov.Type.f32,
    torch.float16: ov.Type.f16,
    torch.bfloat16: ov.Type.bf16,
    torch.float64: ov.Type.f64,
    torch.int64: ov.Type.i64,
    torch.int32: ov.Type.i32,
    torch.int16: ov.Type.i16,
    torch.int8: ov.Type.i8,
    torch.uint8: ov.Type.u8,
    torch.bool: ov.Type.boolean,
}
_TO_TORCH: dict[str, torch.dtype] = {t.get_type_name(): d for d, t in _TO_OV.items()}

# What a program computes as torch does. float64 is missing on purpose: the CPU plugin computes it
# in float32, and small integers, because it computes them in int32 and does not wrap around.
DEVICE_DTYPES: frozenset[torch.dtype] = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}
)

# What a program moves, casts and compares as torch does, but does not compute in.
NARROW_DTYPES: frozenset[torch.dtype] = frozenset({torch.uint8, torch.int8, torch.int16})


def ov_type(dtype: torch.dtype) -> ov.Type:
    """Returns OpenVINO's type for a torch dtype; KeyError for one that has no counterpart."""
    return _TO_OV[dtype]


def torch_dtype(element_type: ov.Type) -> torch.dtype:
    """Returns the torch dtype for an OpenVINO element type; KeyError when there is none."""
    return _TO_TORCH[element_type.get_type_name()]


def is_float(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of the floating point types a program can compute in."""
    return dtype in (torch.float32, torch.float16, torch.bfloat16)


def refusal_for_dtype(dtype: torch.dtype) -> str | None:
    """Why a program cannot compute in this dtype as torch does, or None when it can."""
    if dtype in DEVICE_DTYPES:
        return None
    if dtype is torch.float64:
        return "float64 would be computed in float32"
    if dtype in NARROW_DTYPES:
        return f"{dtype} arithmetic would not wrap around as torch's does"
    return f"{dtype} has no counterpart in a program"

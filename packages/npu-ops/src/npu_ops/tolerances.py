"""Tolerances of ops that run as programs, and ops with values that cannot be compared.

Host kernels always have torch's default tolerances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "DEFAULT",
    "EXPECTED",
    "NAMED",
    "UNDEFINED",
    "Tolerance",
    "is_undefined",
    "stays_on_cpu",
    "tolerance_of",
]


@dataclass(frozen=True)
class Tolerance:
    """The maximum difference, as a share of the largest value of a result (at least 1).

    Attributes:
        float32: share for float32; 0 requires equal values.
        bfloat16: share for bfloat16.
        float16: share for float16.
        reason: reason for the tolerance.
    """

    float32: float
    bfloat16: float
    float16: float
    reason: str

    def of(self, dtype: torch.dtype) -> float:
        """Returns the share of a dtype; 0 if no program computes in it."""
        name = str(dtype).removeprefix("torch.")
        return float(getattr(self, name)) if name in ("float32", "bfloat16", "float16") else 0.0

    @property
    def is_exact(self) -> bool:
        """Whether values must be equal."""
        return self.float32 == self.bfloat16 == self.float16 == 0


DEFAULT = Tolerance(
    5e-6,
    3 * 2**-8,
    2 * 2**-10,
    "sums in another order; 16-bit partial results are rounded, while torch keeps them in float32",
)
_EXACT = Tolerance(0, 0, 0, "values are copied, compared or clamped, never added")

# Names from torch's op database.
NAMED: dict[str, Tolerance] = {
    **dict.fromkeys(
        (
            "max_pool2d_with_indices_backward",
            "nn_functional_embedding",
            "nn_functional_interpolate_nearest",
            "nn_functional_max_pool1d",
            "nn_functional_max_pool2d",
            "nn_functional_relu",
            "nn_functional_upsample_nearest",
        ),
        _EXACT,
    ),
    "nn_functional_multi_head_attention_forward": Tolerance(
        5e-5,
        0.35,
        2 * 2**-10,
        "a softmax between two products amplifies the rounding of scores in the hundreds; compared "
        "with float64, the errors of npu and the CPU are 2.3e-5 and 0.8e-5 in float32, 0.16 and "
        "0.13 in bfloat16",
    ),
    "nn_functional_scaled_dot_product_attention": Tolerance(
        2e-5,
        3 * 2**-8,
        2 * 2**-10,
        "its gradient is the difference of two sums that nearly cancel",
    ),
}


def tolerance_of(subject: str) -> Tolerance:
    """Returns the tolerance of an op by its name in torch's database."""
    return NAMED.get(subject, DEFAULT)


# Results that are not a function of the arguments: only their metadata is compared.
UNDEFINED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)

# Tensor arguments that torch requires on the CPU, for every device: (op, arguments). Samples with
# them on the device would only compare errors.
_ON_CPU = {"tensor_split": "the indices to split at"}

_BY_NAME = (
    "torch accumulates in float32 on devices that it knows by name, cpu and cuda, and in the "
    "input's dtype on any other (torch.nn.modules.linear_cross_entropy_options); with acc_policy "
    "and acc_dtype given, npu equals the CPU"
)

# (op, dtype, check): reason for a difference. tests/conformance/test_exceptions.py shows each.
EXPECTED: dict[tuple[str, str, str], str] = {
    (f"nn_functional_linear_cross_entropy_{kind}", dtype, "forward"): _BY_NAME
    for kind in ("chunked", "chunked_none")
    for dtype in ("float16", "bfloat16")
}


def stays_on_cpu(op: Any) -> bool:
    """Whether the tensors after an op's input must be on the CPU, wherever the input is."""
    return getattr(op, "name", None) in _ON_CPU


def is_undefined(op: Any) -> bool:
    """Whether an op's values are undefined, such as uninitialized memory."""
    return op.name in UNDEFINED

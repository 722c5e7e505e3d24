"""Ops, and cells, of which a comparison with the CPU says nothing, each with its reason."""

from __future__ import annotations

from typing import Any

__all__ = ["EXPECTED", "UNDEFINED", "is_undefined", "stays_on_cpu"]

# Results that are not a function of the arguments: their place is compared, not their values.
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

# Tensors among the arguments that torch takes on the CPU alone, for every device: (op, what they
# are). A sample that had them on the device would compare torch's refusal with a result.
_ON_CPU = {"tensor_split": "the indices to split at"}

_BY_NAME = (
    "torch accumulates in float32 on devices that it knows by name, cpu and cuda, and in the "
    "input's dtype on any other (torch.nn.modules.linear_cross_entropy_options); with acc_policy "
    "and acc_dtype given, npu equals the CPU"
)

# (op, dtype, check): why it may differ. Each is shown in tests/conformance/test_exceptions.py.
EXPECTED: dict[tuple[str, str, str], str] = {
    (f"nn_functional_linear_cross_entropy_{kind}", dtype, "forward"): _BY_NAME
    for kind in ("chunked", "chunked_none")
    for dtype in ("float16", "bfloat16")
}


def stays_on_cpu(op: Any) -> bool:
    """Whether the tensors after an op's input are for the CPU, wherever the input is."""
    return getattr(op, "name", None) in _ON_CPU


def is_undefined(op: Any) -> bool:
    """Whether an op's values are whatever the memory held."""
    return op.name in UNDEFINED

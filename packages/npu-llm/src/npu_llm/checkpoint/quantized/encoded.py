"""EncodedWeight: a weight that a checkpoint stores in several tensors, as integers and scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from npu_compiler.quantize import QuantizedWeight
from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.errors import ModelError

__all__ = [
    "WORDS",
    "AffineWeight",
    "Decode",
    "EncodedWeight",
    "IntegerWeight",
    "as_kernels_hold",
    "incomplete",
    "packed_layers",
    "parts_of",
    "unpack_bits",
    "unreadable",
    "why_not_blocks",
]

# Group sizes of 4-bit integers in kernel programs.
_KERNEL_GROUPS = (128, 64, 32)
_KERNEL_BITS = 4
_LARGEST_ZERO = 255  # a byte
_BLOCK = 32  # weights of Q4_1
# float16 has 11 bits of mantissa.
_HALF_ERROR = 2.0**-11


@dataclass(frozen=True)
class IntegerWeight:
    """A matrix of integers: `(values - zero) * scale`.

    Attributes:
        values: (outputs, groups, inputs / groups) of an integer dtype.
        scale: (outputs, groups, 1) float32.
        zero: (outputs, groups, 1) of an integer dtype; None for zeros.
        bits: bits per value.
    """

    values: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    bits: int

    def floats(self) -> torch.Tensor:
        """Returns the matrix (outputs, inputs) in float32."""
        values = self.values.float()
        if self.zero is not None:
            values -= self.zero.float()
        return values.mul_(self.scale).flatten(1)


@dataclass(frozen=True)
class AffineWeight:
    """A matrix of integers with a scale and a smallest value: `codes * scale + least`.

    Attributes:
        codes: (outputs, groups, inputs / groups) uint8.
        scale: (outputs, groups, 1) float32.
        least: (outputs, groups, 1) float32, the value of code 0.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    least: torch.Tensor

    def floats(self) -> torch.Tensor:
        """Returns the matrix (outputs, inputs) in float32."""
        return torch.addcmul(self.least, self.codes.float(), self.scale).flatten(1)

    def blocks(self) -> torch.Tensor | None:
        """Returns rows of Q4_1 blocks, (outputs, bytes) uint8; None if scales exceed float16.

        Codes are at most 15, in groups of a multiple of 32. Scales and minimum values become
        float16, as in GGUF files.
        """
        if not (_fits_half(self.scale) and bool(self.least.half().isfinite().all())):
            return None
        outputs, _, size = self.codes.shape
        codes = self.codes.reshape(outputs, -1, 2, _BLOCK // 2)
        packed = codes[:, :, 0] | (codes[:, :, 1] << 4)
        both = torch.cat([self.scale, self.least], -1).half().repeat_interleave(size // _BLOCK, 1)
        return torch.cat([both.contiguous().view(torch.uint8), packed], -1).flatten(1)


# Tensor names of a weight in 32-bit words in AutoGPTQ and AutoAWQ.
_QWEIGHT = ".qweight"
WORDS = {"weight": _QWEIGHT, "zeros": ".qzeros", "scales": ".scales"}

# A decoder's result for a weight's tensors, which it reads by role.
Read = Callable[[str], torch.Tensor]
Decode = Callable[[Read], IntegerWeight | AffineWeight | torch.Tensor]


@dataclass(frozen=True)
class EncodedWeight:
    """A weight in several tensors of a checkpoint.

    Attributes:
        name: name of the weight in the original checkpoint.
        shape: shape of its values; None if only the model has it.
        parts: the tensors' names by role.
        decode: computes the values, or integers and scales, from the tensors.
        form: description, such as "4 bits in groups of 128".
        bits: bits per integer; 0 for other values.
        why_floats: reason that kernels cannot store it unchanged; None if they can.
        count: number of values, if only the model has the shape.
    """

    name: str
    shape: tuple[int, ...] | None
    parts: Mapping[str, str]
    decode: Decode = field(repr=False)
    form: str
    bits: int = 0
    why_floats: str | None = None
    count: int = 0


def as_kernels_hold(weight: IntegerWeight) -> QuantizedWeight | None:
    """Returns integers in a format that kernels support without loss; None if there is none.

    Integers of fewer than 4 bits are stored in 4, and long groups as several with the same scale.
    Scales of 4 bits become float16, with a smaller rounding error than any other format.
    """
    outputs, groups, size = weight.values.shape
    values, scale, zero = weight.values, weight.scale, weight.zero
    if weight.bits > _KERNEL_BITS:
        return _centered(values, scale, zero, bits=8) if weight.bits == 8 and groups == 1 else None
    split = next((one for one in _KERNEL_GROUPS if size % one == 0), None)
    if split is None or not _fits_half(scale):
        return None
    times = size // split
    values = values.reshape(outputs, groups * times, split)
    scale = scale.repeat_interleave(times, 1)
    zero = None if zero is None else zero.repeat_interleave(times, 1)
    return _centered(values, scale, zero, bits=_KERNEL_BITS)


def _centered(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, *, bits: int
) -> QuantizedWeight | None:
    """Returns integers without zero points if these are all equal, else unsigned integers."""
    middle, top = 1 << (bits - 1), (1 << bits) - 1
    low, high = _range(values)
    least, most = (0, 0) if zero is None else _range(zero)
    if least == most and -middle <= low - least and high - least < middle:
        return QuantizedWeight((values.to(torch.int16) - least).to(torch.int8), scale, None, bits)
    if zero is None:
        return None
    shift = middle if low < 0 else 0  # of signed values with zero points
    if low + shift < 0 or high + shift > top or least + shift < 0 or most + shift > _LARGEST_ZERO:
        return None
    return QuantizedWeight(
        (values.to(torch.int16) + shift).to(torch.uint8),
        scale,
        (zero.to(torch.int16) + shift).to(torch.uint8),
        bits,
    )


def _range(values: torch.Tensor) -> tuple[int, int]:
    low, high = values.aminmax()
    return int(low), int(high)


def _fits_half(scale: torch.Tensor) -> bool:
    return bool(((scale.half().float() - scale).abs() <= _HALF_ERROR * scale.abs()).all())


def why_not_blocks(bits: int, size: int) -> str | None:
    """Returns the reason that kernels do not support float zero points; None if they do."""
    if bits > _KERNEL_BITS:
        return "kernels have no float zero points with 8 bits"
    return f"kernels have groups of {_BLOCK}" if size % _BLOCK else None


def unpack_bits(words: torch.Tensor, *, bits: int, count: int) -> torch.Tensor:
    """Returns the integers of a dense bit stream, lowest bits first.

    Args:
        words: (rows, words) int32 or uint8, contiguous in a row.
        bits: bits per integer, 1 to 8.
        count: number of integers per row.

    Returns:
        (rows, count) uint8.
    """
    raw = words.contiguous().view(torch.uint8).view(len(words), -1)
    if bits == 8:
        return raw[:, :count]
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        fields = (raw[..., None] >> shifts) & ((1 << bits) - 1)
        return fields.flatten(1)[:, :count]
    ones = (raw[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
    ones = ones.flatten(1)[:, : count * bits].view(len(words), count, bits)
    return (ones << torch.arange(bits, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def parts_of(
    base: str,
    headers: Mapping[str, TensorSpec],
    needed: Mapping[str, str],
    optional: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns the tensors of a weight by role.

    Args:
        base: prefix of their names.
        headers: headers of the checkpoint.
        needed: role -> suffix of the name, for required tensors.
        optional: role -> suffix of the name, for optional tensors.

    Raises:
        ModelError: [quantization-parts] if one is missing.
    """
    absent = [base + end for end in needed.values() if base + end not in headers]
    if absent:
        raise incomplete(base, f"{absent[0]} is missing")
    ends = {**needed, **(optional or {})}
    return {role: base + end for role, end in ends.items() if base + end in headers}


def packed_layers(headers: Mapping[str, TensorSpec]) -> Iterator[str]:
    """Yields the names of the layers with weights in WORDS."""
    return (name.removesuffix(_QWEIGHT) for name in headers if name.endswith(_QWEIGHT))


def incomplete(name: str, reason: str) -> ModelError:
    """Returns the error for a weight with inconsistent tensors: [quantization-parts]."""
    return ModelError(
        f"`{name.rstrip('.')}` must have all tensors of a quantized weight, in the shapes of its "
        f"format; {reason}. Get the whole checkpoint, with the matching config.json.",
        code="quantization-parts",
    )


def unreadable(what: str) -> ModelError:
    """Returns the error for an unsupported format: [quantization-form]."""
    return ModelError(
        "The checkpoint's weights must be floats, or quantized in a supported format, got "
        f"{what}. Get the original checkpoint or a GGUF file of it, or dequantize it with the "
        "library that wrote it and save_pretrained.",
        code="quantization-form",
    )


def grouped(values: torch.Tensor, groups: int) -> torch.Tensor:
    """Returns (outputs, inputs) as (outputs, groups, inputs / groups)."""
    return values.view(len(values), groups, -1)


def elements_of(shape: tuple[int, ...]) -> int:
    """Returns the number of values in a shape."""
    return math.prod(shape)

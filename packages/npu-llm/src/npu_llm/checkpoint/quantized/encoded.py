"""EncodedWeight: a weight that a checkpoint holds in several tensors, as integers and scales."""

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

# What kernel programs hold of 4 bits: how many inputs share a scale.
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
        bits: of a value.
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
        least: (outputs, groups, 1) float32, the value of the code 0.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    least: torch.Tensor

    def floats(self) -> torch.Tensor:
        """Returns the matrix (outputs, inputs) in float32."""
        return torch.addcmul(self.least, self.codes.float(), self.scale).flatten(1)

    def blocks(self) -> torch.Tensor | None:
        """Returns rows of Q4_1 blocks, (outputs, bytes) uint8; None if scales exceed float16.

        Codes are at most 15, in groups of a multiple of 32. Scales and smallest values become
        float16, as GGUF files have them.
        """
        if not (_fits_half(self.scale) and bool(self.least.half().isfinite().all())):
            return None
        outputs, _, size = self.codes.shape
        codes = self.codes.reshape(outputs, -1, 2, _BLOCK // 2)
        packed = codes[:, :, 0] | (codes[:, :, 1] << 4)
        both = torch.cat([self.scale, self.least], -1).half().repeat_interleave(size // _BLOCK, 1)
        return torch.cat([both.contiguous().view(torch.uint8), packed], -1).flatten(1)


# The tensors of a weight in words of 32 bits, as AutoGPTQ and AutoAWQ name them.
_QWEIGHT = ".qweight"
WORDS = {"weight": _QWEIGHT, "zeros": ".qzeros", "scales": ".scales"}

# What a decoder makes of a weight's tensors, which it reads by their roles.
Read = Callable[[str], torch.Tensor]
Decode = Callable[[Read], IntegerWeight | AffineWeight | torch.Tensor]


@dataclass(frozen=True)
class EncodedWeight:
    """A weight in several tensors of a checkpoint.

    Attributes:
        name: of the weight in a checkpoint that is not quantized.
        shape: of its values; None if only the model has it.
        parts: the tensors' names by their roles.
        decode: computes the values, or integers and scales, from the tensors.
        form: describes it to a reader, such as "4 bits in groups of 128".
        bits: of its integers; 0 for other values.
        why_floats: why the kernels cannot hold it as it is; None if they can.
        count: how many values it has, where only the model has the shape.
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
    """Returns integers in a form that kernel programs hold without loss; None for another form.

    Integers of fewer than 4 bits are held as such of 4, and long groups as several of one scale.
    Scales of 4 bits become float16, whose rounding is less than that of any other form.
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
    """Returns integers without zero points if all of these are equal, else unsigned ones."""
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
    """Returns why kernels cannot hold groups with float zero points; None if they can."""
    if bits > _KERNEL_BITS:
        return "kernels have no float zero points with 8 bits"
    return f"kernels have groups of {_BLOCK}" if size % _BLOCK else None


def unpack_bits(words: torch.Tensor, *, bits: int, count: int) -> torch.Tensor:
    """Returns the integers of a dense stream of bits, the lowest first.

    Args:
        words: (rows, words) int32 or uint8, contiguous in a row.
        bits: of an integer, 1 to 8.
        count: how many integers a row has.

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
    """Returns the tensors of a weight by their roles.

    Args:
        base: what their names begin with.
        headers: the checkpoint's.
        needed: role -> end of the name, of tensors that must be there.
        optional: the same of others.

    Raises:
        ModelError: [quantization-parts] if one is missing.
    """
    absent = [base + end for end in needed.values() if base + end not in headers]
    if absent:
        raise incomplete(base, f"{absent[0]} is missing")
    ends = {**needed, **(optional or {})}
    return {role: base + end for role, end in ends.items() if base + end in headers}


def packed_layers(headers: Mapping[str, TensorSpec]) -> Iterator[str]:
    """Yields the names of the layers whose weights are in WORDS."""
    return (name.removesuffix(_QWEIGHT) for name in headers if name.endswith(_QWEIGHT))


def incomplete(name: str, reason: str) -> ModelError:
    """Returns the error for a weight whose tensors do not fit together: [quantization-parts]."""
    return ModelError(
        f"{name.rstrip('.')}: a quantized weight must have all of its tensors, in the shapes of "
        f"its format; {reason}. Get the whole checkpoint, with the config.json that belongs to it.",
        code="quantization-parts",
    )


def unreadable(what: str) -> ModelError:
    """Returns the error for a form that is not read here: [quantization-form]."""
    return ModelError(
        f"The checkpoint's weights must be floats, or quantized in a form that is read here, got "
        f"{what}. Get the original checkpoint or a GGUF file of it, or dequantize it with the "
        "library that wrote it and save_pretrained.",
        code="quantization-form",
    )


def grouped(values: torch.Tensor, groups: int) -> torch.Tensor:
    """Returns (outputs, inputs) as (outputs, groups, inputs / groups)."""
    return values.view(len(values), groups, -1)


def elements_of(shape: tuple[int, ...]) -> int:
    """Returns how many values a shape has."""
    return math.prod(shape)

"""Cases as data: an op, its arguments as lines such as `[2,3] float32 0.5..2`, dtype and layout.

Values are integers from a seeded generator, scaled by powers of two and one multiplication in
float64. They are the same on every machine, which generators of normal numbers do not guarantee.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from npu_ops.errors import OperatorInputError
from npu_ops.op_conformance.interface import Operator, operator_named

__all__ = [
    "CHECKS",
    "KINDS",
    "LAYOUTS",
    "Case",
    "TensorSpec",
    "dtype_named",
    "has_effect",
    "lay_out",
    "make_tensor",
    "parse_tensor",
    "restride",
]


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype)
    every_other = wide[..., ::2]
    return every_other.copy_(tensor)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)
    return buffer[3:].view(tensor.shape).copy_(tensor)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    memory_format = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.contiguous(memory_format=memory_format)


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].clone().expand(tensor.shape)


# Layout -> (shapes that it changes, function).
LAYOUTS: dict[str, tuple[Callable[[tuple[int, ...]], bool], Callable[..., torch.Tensor]]] = {
    "contiguous": (lambda _: True, lambda tensor: tensor),
    "strided": (lambda shape: len(shape) > 0 and 0 not in shape, _strided),
    "transposed": (lambda shape: len(shape) > 1 and 0 not in shape, _transposed),
    "offset": (lambda shape: 0 not in shape, _offset),
    "channels_last": (lambda shape: len(shape) in (4, 5) and 0 not in shape, _channels_last),
    "expanded": (lambda shape: len(shape) > 0 and 0 not in shape and shape[0] > 1, _expanded),
}


def has_effect(layout: str, shape: tuple[int, ...]) -> bool:
    """Whether a layout changes the strides of a tensor of a shape."""
    return LAYOUTS[layout][0](shape)


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns the tensor in a layout, or unchanged if the layout does not apply to its shape."""
    applies, arrange = LAYOUTS[layout]
    return arrange(tensor) if applies(tuple(tensor.shape)) else tensor


def restride(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Copies the values to memory with given strides; overlapping elements have the last value."""
    if tensor.numel() == 0:
        return tensor
    steps = zip(tensor.shape, strides, strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    there = torch.zeros(last + 1, dtype=tensor.dtype).as_strided(tensor.shape, strides)
    if 0 in strides:  # expanded: copy_ refuses to write an element several times
        first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        there[first].copy_(tensor[first])
        return there
    return there.copy_(tensor)


KINDS = (
    "distinct",  # distinct values
    "few",  # repeated values
    "lower",  # an invertible triangular matrix
    "permutation",  # a permutation of 0 to n - 1 along the last axis
    "probability",  # positive, with sum 1 along the last axis
    "sorted",  # ascending along the last axis
    "special",  # including NaN, infinities and zeros of both signs
    "spd",  # a symmetric positive definite matrix
)
_STEPS = 2**16
_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)
_SHAPE = re.compile(r"\[([\d,]*)\]$")


@dataclass(frozen=True)
class TensorSpec:
    """Specification of a case's tensor.

    Attributes:
        shape: shape of the tensor.
        dtype: dtype of the tensor; empty for the case's.
        low: the smallest value.
        high: the largest value.
        kind: one of `KINDS`, or empty.
        is_constant: whether it has no gradient.
        strides: strides recorded from a network; None for the case's layout.
    """

    shape: tuple[int, ...]
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    kind: str = ""
    is_constant: bool = False
    strides: tuple[int, ...] | None = None


@functools.lru_cache(maxsize=4096)
def parse_tensor(text: str) -> TensorSpec:
    """Parses a line such as `[2,3] int64 0..9 distinct constant @3,1`.

    Raises:
        OperatorInputError: [case-tensor] for an unknown word.
    """
    shape, *words = text.split()
    match = _SHAPE.match(shape)
    if match is None:
        raise _unreadable(text, shape)
    options: dict[str, object] = {}
    for word in words:
        if word in KINDS:
            options["kind"] = word
        elif word == "constant":
            options["is_constant"] = True
        elif word.startswith("@"):
            options["strides"] = tuple(int(n) for n in word[1:].split(",") if n)
        elif ".." in word:
            options["low"], options["high"] = (float(n) for n in word.split(".."))
        elif isinstance(getattr(torch, word, None), torch.dtype):
            options["dtype"] = word
        else:
            raise _unreadable(text, word)
    sizes = tuple(int(n) for n in match.group(1).split(",") if n)
    return TensorSpec(sizes, **options)  # type: ignore[arg-type]


def dtype_named(name: str) -> torch.dtype:
    """`torch.float32` for `float32`."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def make_tensor(spec: TensorSpec, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Creates the tensor on the CPU, contiguous.

    Args:
        spec: the specification.
        dtype: dtype for a spec without one.
        generator: a CPU generator, the only source of the values.
    """
    dtype = dtype_named(spec.dtype) if spec.dtype else dtype
    if spec.kind == "permutation":
        return _permutations(spec.shape, generator).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, spec.shape, generator=generator).to(dtype)
    if spec.kind in ("spd", "lower"):
        return _matrix(spec, generator).to(dtype)
    if dtype.is_complex:
        parts = [_reals(spec, generator) for _ in range(2)]
        return torch.complex(*parts).to(dtype)
    if not dtype.is_floating_point:
        low, high = _integer_range(spec, dtype)
        if spec.kind == "distinct":
            return (_permutations(spec.shape, generator, whole=True) + low).to(dtype)
        values = torch.randint(low, high + 1, spec.shape, generator=generator)
        return (values.sort(-1).values if spec.kind == "sorted" else values).to(dtype)
    return _reals(spec, generator).to(dtype)


def _reals(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    low = -1.0 if spec.low is None else spec.low
    high = 1.0 if spec.high is None else spec.high
    if spec.kind == "distinct":
        steps = _permutations(spec.shape, generator, whole=True).double()
        # The next power of two of the range, so that 16-bit floats distinguish values of small
        # tensors.
        share = steps / 2 ** max(1, (steps.numel() - 1).bit_length())
    elif spec.kind == "few":
        share = torch.randint(0, 4, spec.shape, generator=generator).double() / 4
    else:
        share = torch.randint(0, _STEPS + 1, spec.shape, generator=generator).double() / _STEPS
    values: torch.Tensor = low + (high - low) * share
    if spec.kind == "sorted":
        values = values.sort(-1).values
    if spec.kind == "probability":
        values = share + 1 / _STEPS
        values = values / values.sum(-1, keepdim=True)
    if spec.kind == "special" and values.numel():
        flat = values.view(-1)
        places = torch.randint(0, flat.numel(), (2 * len(_SPECIAL),), generator=generator)
        for place, value in zip(places.tolist(), _SPECIAL * 2, strict=True):
            flat[place] = value
    return values


def _permutations(
    shape: tuple[int, ...], generator: torch.Generator, *, whole: bool = False
) -> torch.Tensor:
    """Returns permutations along the last axis, or one over all elements."""
    size = torch.Size(shape).numel() if whole else (shape[-1] if shape else 1)
    if whole or len(shape) <= 1:
        return torch.randperm(size, generator=generator).view(shape)
    rows = torch.Size(shape[:-1]).numel()
    each = [torch.randperm(size, generator=generator) for _ in range(rows)]
    return torch.stack(each).view(shape) if each else torch.empty(shape, dtype=torch.int64)


def _matrix(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    # Eighths: products and sums are exact in float64, in any order.
    values = torch.randint(-8, 9, spec.shape, generator=generator).double() / 8
    size = spec.shape[-1]
    identity = torch.eye(size, dtype=torch.float64)
    if spec.kind == "spd":
        return values @ values.mT + size * identity
    return values.tril(-1) / 4 + identity * (1 + values.abs())


def _integer_range(spec: TensorSpec, dtype: torch.dtype) -> tuple[int, int]:
    if spec.low is not None and spec.high is not None:
        low, high = int(spec.low), int(spec.high)
        return (max(0, low), high) if dtype is torch.uint8 else (low, high)
    return (0, 16) if dtype is torch.uint8 else (-8, 8)


def _unreadable(text: str, word: str) -> OperatorInputError:
    return OperatorInputError(
        "A case's tensor must be a shape such as [2,3], then a dtype, a range such as 0..5, "
        f"{', '.join(KINDS)}, constant, or strides such as @3,1, got {word!r} in {text!r}. "
        "Correct the line.",
        code="case-tensor",
    )


CHECKS = ("forward", "backward", "in-place")
_OF_CASE = "torch.case"  # placeholder of the case's dtype
_DIGITS = 10


@dataclass(frozen=True)
class Case:
    """One call of one op.

    Attributes:
        suite: `interface` or `models`.
        op: name in the interface, or aten name with its overload.
        dtype: dtype of tensors without one.
        layout: layout of the tensors, one of LAYOUTS; `recorded` if each has its strides.
        arguments: by the signature's names. Tensors are lines such as `[2,3] float32`; dtypes and
            memory formats are text such as `torch.float32`.
        checks: some of `CHECKS`, always including forward.
        tolerance: name in tolerances.toml; empty for the op's.
        models: networks with this call.
    """

    suite: str
    op: str
    dtype: str
    layout: str
    arguments: Mapping[str, Any]
    checks: tuple[str, ...] = ("forward",)
    tolerance: str = ""
    models: tuple[str, ...] = ()

    @functools.cached_property
    def id(self) -> str:
        """A stable name, independent of the case's position in its file."""
        content = json.dumps(
            [self.op, self.dtype, self.layout, self.arguments], sort_keys=True
        ).encode()
        digest = hashlib.blake2b(content, digest_size=_DIGITS // 2).hexdigest()
        return f"{self.op}:{self.dtype}:{self.layout}:{digest}"

    @property
    def operator(self) -> Operator:
        """The called op."""
        return operator_named(self.op)

    def make_arguments(self, *, requires_grad: bool = False) -> dict[str, Any]:
        """Creates the arguments on the CPU, equal at each call and on each machine.

        Args:
            requires_grad: whether differentiable tensors require a gradient.
        """
        seed = zlib.crc32(self.id.encode())
        generator = torch.Generator().manual_seed(seed)
        tensors = self.operator.tensors

        def make(text: str) -> torch.Tensor:
            spec = parse_tensor(text)
            tensor = make_tensor(spec, dtype_named(self.dtype), generator)
            if spec.strides is not None:
                tensor = restride(tensor, spec.strides)
            elif self.layout != "recorded":
                tensor = lay_out(tensor, self.layout)
            may_learn = tensor.is_floating_point() or tensor.is_complex()
            return tensor.requires_grad_(requires_grad and may_learn and not spec.is_constant)

        return {
            name: tree_map_only(str, make if name in tensors else self._word, value)
            for name, value in self.arguments.items()
        }

    def _word(self, text: str) -> Any:
        """Parses a dtype, a memory format, or plain text."""
        if text == _OF_CASE:
            return dtype_named(self.dtype)
        if text.startswith("torch."):
            return getattr(torch, text.removeprefix("torch."))
        return text

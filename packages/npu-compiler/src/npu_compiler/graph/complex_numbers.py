"""Complex numbers as pairs of real numbers: rules of ops, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from npu_compiler.graph.op_forms import register_shape

__all__ = ["RULES", "Pairs", "StaysComplex", "pairs_of_complex", "pairs_of_real", "real_of_pairs"]

# A device has no complex numbers, and its transforms take and return pairs. These ops replace
# torch's transforms of complex tensors in a graph.

_LIBRARY = torch.library.Library("npu_compiler", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMAS = (
    "pairs_of_real(Tensor self, int[] dim, float scale) -> Tensor",
    "pairs_of_complex(Tensor self, int[] dim, bool inverse, float scale) -> Tensor",
    "real_of_pairs(Tensor self, int[] dim, int last_size, float scale) -> Tensor",
)
for _schema in _SCHEMAS:
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]


def _pairs_of_real(self: torch.Tensor, dim: Sequence[int], scale: float) -> torch.Tensor:
    return torch.view_as_real(torch.fft.rfftn(self, dim=dim, norm="backward") * scale)


def _pairs_of_complex(
    self: torch.Tensor, dim: Sequence[int], inverse: bool, scale: float
) -> torch.Tensor:
    value = torch.view_as_complex(self.contiguous())
    if inverse:
        return torch.view_as_real(torch.fft.ifftn(value, dim=dim, norm="forward") * scale)
    return torch.view_as_real(torch.fft.fftn(value, dim=dim, norm="backward") * scale)


def _real_of_pairs(
    self: torch.Tensor, dim: Sequence[int], last_size: int, scale: float
) -> torch.Tensor:
    value = torch.view_as_complex(self.contiguous())
    sizes = [value.shape[axis] for axis in dim[:-1]]
    made: torch.Tensor = torch.fft.irfftn(value, s=[*sizes, last_size], dim=dim, norm="forward")
    return made * scale


def _shape_of_real(self: torch.Tensor, dim: Sequence[int], scale: float) -> torch.Tensor:
    sizes = [*self.shape, 2]
    sizes[dim[-1]] = self.shape[dim[-1]] // 2 + 1
    return self.new_empty(sizes)


def _shape_of_complex(
    self: torch.Tensor, dim: Sequence[int], inverse: bool, scale: float
) -> torch.Tensor:
    return self.new_empty(self.shape)


def _shape_of_pairs(
    self: torch.Tensor, dim: Sequence[int], last_size: int, scale: float
) -> torch.Tensor:
    sizes = list(self.shape[:-1])
    sizes[dim[-1]] = last_size
    return self.new_empty(sizes)


for _name, _kernel, _fake in (
    ("pairs_of_real", _pairs_of_real, _shape_of_real),
    ("pairs_of_complex", _pairs_of_complex, _shape_of_complex),
    ("real_of_pairs", _real_of_pairs, _shape_of_pairs),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    register_shape(_LIBRARY, _name, _fake)

# Transforms along `dim` (axes of the complex tensor's shape, from 0), times `scale`, the whole
# normalization: from real to pairs, with the last axis halved; from pairs to pairs; and from pairs
# to real, with `last_size` numbers in the last axis.
pairs_of_real = torch.ops.npu_compiler.pairs_of_real.default
pairs_of_complex = torch.ops.npu_compiler.pairs_of_complex.default
real_of_pairs = torch.ops.npu_compiler.real_of_pairs.default


# A call without a rule here stays complex and runs on the host, such as quotients and angles: their
# special values take many calls.

aten = torch.ops.aten


class StaysComplex(Exception):
    """Raised if there is no rule for operands of these kinds."""


@dataclass(frozen=True)
class Pairs:
    """A complex tensor as real tensor, (..., 2)."""

    value: Tensor

    @property
    def real(self) -> Tensor:
        """The real parts."""
        return self.value[..., 0]

    @property
    def imag(self) -> Tensor:
        """The imaginary parts."""
        return self.value[..., 1]

    @property
    def rank(self) -> int:
        """Number of axes, without the axis of pairs."""
        return self.value.dim() - 1

    def axis(self, dim: int) -> int:
        """Returns a dim counted from the front."""
        return dim % self.rank


Operand: TypeAlias = Pairs | Tensor | complex
_Rule = TypeVar("_Rule", bound=Callable[..., Any])
RULES: dict[Any, Callable[..., Any]] = {}


def _rule(*targets: Any) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        for target in targets:
            RULES[target] = function
        return function

    return register


def _pairs(real: Any, imag: Any) -> Pairs:
    parts = torch.broadcast_tensors(real, imag)  # type: ignore[no-untyped-call]
    return Pairs(torch.stack(parts, -1))


def _parts(operand: Operand) -> tuple[Any, Any]:
    """Returns the real and the imaginary part; the latter is None for a real operand."""
    if isinstance(operand, complex):
        return operand.real, operand.imag
    return (operand.real, operand.imag) if isinstance(operand, Pairs) else (operand, None)


# From real to complex, and from complex to real


@_rule(aten.polar.default)
def _polar(absolute: Tensor, angle: Tensor) -> Pairs:
    return _pairs(absolute * torch.cos(angle), absolute * torch.sin(angle))


@_rule(aten.complex.default)
def _complex(real: Tensor, imag: Tensor) -> Pairs:
    return _pairs(real, imag)


@_rule(aten.view_as_complex.default)
def _view_as_complex(value: Tensor) -> Pairs:
    return Pairs(value)


@_rule(aten.view_as_real.default)
def _view_as_real(value: Pairs) -> Tensor:
    return value.value


@_rule(aten._to_copy.default)
def _to_copy(value: Pairs | Tensor, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if isinstance(value, Tensor):
        real = value.float()
        return _pairs(real, torch.zeros_like(real))
    is_complex = dtype is None or dtype.is_complex
    return Pairs(value.value.clone()) if is_complex else value.real.to(dtype)


@_rule(aten.abs.default)
def _abs(value: Pairs) -> Tensor:
    """Factors out the larger part before squaring, to avoid overflow and underflow."""
    real, imag = value.real.abs(), value.imag.abs()
    largest = torch.maximum(real, imag)
    is_plain = (largest > 0) & (largest < math.inf)
    scale = torch.where(is_plain, largest, 1.0)
    length = scale * ((real / scale).square() + (imag / scale).square()).sqrt()
    is_infinite = (real == math.inf) | (imag == math.inf)  # also with a NaN part
    return torch.where(is_infinite, math.inf, torch.where(is_plain, length, largest))


# Arithmetic


@_rule(aten.mul.Tensor)
def _mul(first: Operand, second: Operand) -> Pairs:
    (real, imag), (other_real, other_imag) = _parts(first), _parts(second)
    if imag is None:
        return _pairs(real * other_real, real * other_imag)
    if other_imag is None:
        return _pairs(real * other_real, imag * other_real)
    return _pairs(real * other_real - imag * other_imag, real * other_imag + imag * other_real)


@_rule(aten.add.Tensor)
def _add(first: Operand, second: Operand, alpha: float = 1) -> Pairs:
    (real, imag), (other_real, other_imag) = _parts(first), _parts(second)
    if imag is None:
        return _pairs(real + alpha * other_real, alpha * other_imag)
    if other_imag is None:
        return _pairs(real + alpha * other_real, imag)
    return _pairs(real + alpha * other_real, imag + alpha * other_imag)


@_rule(aten.sub.Tensor)
def _sub(first: Operand, second: Operand, alpha: float = 1) -> Pairs:
    return _add(first, second, -alpha)


@_rule(aten.div.Tensor)
def _div(first: Operand, second: Operand) -> Pairs:
    if not isinstance(first, Pairs) or isinstance(second, (Pairs, complex)):
        raise StaysComplex
    divisor = second[..., None] if isinstance(second, Tensor) else second
    return Pairs(first.value / divisor)


@_rule(aten.neg.default)
def _neg(value: Pairs) -> Pairs:
    return Pairs(-value.value)


@_rule(aten.exp.default)
def _exp(value: Pairs) -> Pairs:
    return _polar(value.real.exp(), value.imag)


@_rule(aten._conj.default, aten.conj_physical.default, aten._conj_physical.default)
def _conj(value: Pairs) -> Pairs:
    return _pairs(value.real, -value.imag)


@_rule(aten.mm.default, aten.bmm.default, aten.matmul.default)
def _matmul(first: Pairs, second: Pairs) -> Pairs:
    real = first.real @ second.real - first.imag @ second.imag
    return _pairs(real, first.real @ second.imag + first.imag @ second.real)


# Fourier transforms: dims, halved axes, and torch's three normalizations


def _scale(normalization: int, sizes: Sequence[int]) -> float:
    count = math.prod(sizes)
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization]


@_rule(aten._fft_r2c.default)
def _real_to_complex(value: Tensor, dim: list[int], normalization: int, onesided: bool) -> Pairs:
    axes = [axis % value.dim() for axis in dim]
    scale = _scale(normalization, [value.shape[axis] for axis in axes])
    if onesided:
        return Pairs(pairs_of_real(value, axes, scale))
    return Pairs(pairs_of_complex(_to_copy(value).value, axes, False, scale))


@_rule(aten._fft_c2c.default)
def _complex_to_complex(value: Pairs, dim: list[int], normalization: int, forward: bool) -> Pairs:
    axes = [value.axis(axis) for axis in dim]
    scale = _scale(normalization, [value.value.shape[axis] for axis in axes])
    return Pairs(pairs_of_complex(value.value, axes, not forward, scale))


@_rule(aten._fft_c2r.default)
def _complex_to_real(value: Pairs, dim: list[int], normalization: int, last: int) -> Tensor:
    axes = [value.axis(axis) for axis in dim]
    scale = _scale(normalization, [*(value.value.shape[axis] for axis in axes[:-1]), last])
    made: Tensor = real_of_pairs(value.value, axes, last, scale)
    return made


# Views, indexing and concatenation


_VIEWS: dict[Any, Callable[..., Tensor]] = {
    aten.view.default: lambda x, size: x.value.reshape(*size, 2),
    aten.reshape.default: lambda x, size: x.value.reshape(*size, 2),
    aten._unsafe_view.default: lambda x, size: x.value.reshape(*size, 2),
    aten.expand.default: lambda x, size: x.value.expand(*size, 2),
    aten.repeat.default: lambda x, repeats: x.value.repeat(*repeats, 1),
    aten.unsqueeze.default: lambda x, dim: x.value.unsqueeze(dim % (x.rank + 1)),
    aten.squeeze.dim: lambda x, dim: x.value.squeeze(x.axis(dim)),
    aten.squeeze.dims: lambda x, dim: x.value.squeeze([x.axis(one) for one in dim]),
    aten.permute.default: lambda x, dims: x.value.permute(*map(x.axis, dims), x.rank),
    aten.transpose.int: lambda x, a, b: x.value.transpose(x.axis(a), x.axis(b)),
    aten.select.int: lambda x, dim, index: x.value.select(x.axis(dim), index),
    aten.slice.Tensor: lambda x, dim=0, *places: aten.slice.Tensor(x.value, x.axis(dim), *places),
    aten.index_select.default: lambda x, dim, index: x.value.index_select(x.axis(dim), index),
    aten.flip.default: lambda x, dims: x.value.flip([x.axis(dim) for dim in dims]),
    aten.clone.default: lambda x, **_: x.value.clone(),
    aten.alias.default: lambda x: x.value.clone(),
    aten.detach.default: lambda x: x.value.clone(),
    aten.resolve_conj.default: lambda x: x.value.clone(),
}
for _target, _view in _VIEWS.items():
    _rule(_target)(lambda *args, view=_view, **kwargs: Pairs(view(*args, **kwargs)))


@_rule(aten.cat.default)
def _cat(values: list[Pairs], dim: int = 0) -> Pairs:
    if not all(isinstance(value, Pairs) for value in values):
        raise StaysComplex
    return Pairs(torch.cat([value.value for value in values], values[0].axis(dim)))


@_rule(aten.sum.dim_IntList)
def _sum(value: Pairs, dim: list[int] | None, keepdim: bool = False) -> Pairs:
    axes = [value.axis(one) for one in dim or range(value.rank)]
    return Pairs(value.value.sum(axes, keepdim))

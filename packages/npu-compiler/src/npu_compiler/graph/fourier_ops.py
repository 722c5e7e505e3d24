"""Fourier transforms whose complex numbers are pairs of real ones, along a last axis of two.

A device has no complex numbers, and its transforms take and give pairs. These ops stand in a graph
where torch has those of complex tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["pairs_of_complex", "pairs_of_real", "real_of_pairs"]

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
    torch.library.register_fake(f"npu_compiler::{_name}", _fake, lib=_LIBRARY)

# Transforms along `dim`, axes from 0 of the complex tensor's shape, times `scale`, which holds all
# of the normalization: of a real tensor, the last axis halved; of pairs; and back, where the last
# axis has `last_size` numbers.
pairs_of_real = torch.ops.npu_compiler.pairs_of_real.default
pairs_of_complex = torch.ops.npu_compiler.pairs_of_complex.default
real_of_pairs = torch.ops.npu_compiler.real_of_pairs.default

"""Int4 weights whose rounding errors make up for each other, by what the inputs look like.

GPTQ (Frantar et al., 2022, arXiv:2210.17323) rounds the columns of a weight one after the other and
takes what one column's error does to the product back with those still to come. Three things are
added, each of which brings the products nearer: columns with large inputs go first, in groups whose
grids are fixed before; each group's scale is then fitted to the integers that were found; and the
integers are gone through again, each the best beside all others (Behdin et al., 2023,
arXiv:2309.01885).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from npu_compiler.errors import OptionError
from npu_compiler.quantize.weights import QuantizedWeight

__all__ = ["round_by_moments"]

# Of the mean diagonal, added to the diagonal: keeps the inverse of few samples' moments finite.
_DAMPING = 0.01
# Columns whose corrections reach the rest of the matrix in one product.
_BLOCK = 64
# Shares of a group's span that are tried for its scale: clipping a few large values can be better.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
# Fits of the scales with a pass over the integers after each; more gain next to nothing.
_ROUNDS = 2
# Numbers in the least squares of rows that are solved at once.
_NORMAL_ELEMENTS = 1 << 24


def round_by_moments(
    weight: torch.Tensor,
    moments: torch.Tensor,
    *,
    group_size: int,
    symmetric: bool = False,
    drift: torch.Tensor | None = None,
) -> QuantizedWeight:
    """Rounds a matrix to 4 bits so that its products with typical inputs change least.

    With a drift the products are to be those of the weight with the inputs that it had before
    anything was rounded, so that it makes up for errors in its inputs too (after Li et al., 2025,
    arXiv:2504.02692; here the weight that does so best is solved for, and that one is rounded).

    Args:
        weight: (rows, columns), a float dtype.
        moments: sum of x x^T over inputs x of the product, (columns, columns), float32 or float64.
        group_size: elements along a row that share a scale; it divides the columns.
        symmetric: without zero points.
        drift: sum of (y - x) x^T, of the moments' shape, with y the input that the product had in
            place of x before anything was rounded.

    Raises:
        OptionError: [quantize-weight] when weight is no matrix or group_size does not divide it,
            [quantize-data] for moments or a drift of another shape or that are not finite.
    """
    if weight.dim() != 2 or weight.shape[1] % group_size:
        raise OptionError(
            f"round_by_moments: weight must be a matrix whose rows group_size divides; got shape "
            f"{tuple(weight.shape)}, group_size {group_size}. Choose one by fitting_group().",
            code="quantize-weight",
        )
    columns = weight.shape[1]
    for name, sums in (("moments", moments), ("drift", moments if drift is None else drift)):
        if tuple(sums.shape) != (columns, columns) or not bool(sums.isfinite().all()):
            raise OptionError(
                f"round_by_moments: {name} must be finite numbers of shape ({columns}, {columns}); "
                f"got shape {tuple(sums.shape)}, {int((~sums.isfinite()).sum())} not finite. Pass "
                "the sums over all inputs of the product; calls must not overflow.",
                code="quantize-data",
            )
    exact = weight.detach().float()
    damped = _damped(moments)
    if drift is not None:
        moved = exact.double() @ drift.double()
        exact = exact + torch.linalg.solve(damped, moved, left=False).float()
    grid = _searched_grid(exact, group_size, symmetric)
    values = _compensated(exact, damped, grid)
    near = damped.float()
    for _ in range(_ROUNDS):
        grid = _fitted(exact, near, values, grid)
        values = _improved(exact, near, values, grid)
    grid = _fitted(exact, near, values, grid)
    return grid.stored(values)


@dataclass(frozen=True)
class _Grid:
    """Which floats the integers of each group stand for; scale and zero are (rows, groups)."""

    scale: torch.Tensor
    zero: torch.Tensor
    group_size: int
    symmetric: bool

    def round(self, exact: torch.Tensor, group: int | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The integers, as floats, of one column or group, and what they stand for."""
        scale, zero = self.scale[:, group], self.zero[:, group]
        low, high = (-8, 7) if self.symmetric else (0, 15)
        values = (exact / scale).round_().add_(zero).clamp_(low, high)
        return values, (values - zero) * scale

    def offsets(self, values: torch.Tensor) -> torch.Tensor:
        """Integers without their zero points, (rows, groups, group size)."""
        grouped = values.reshape(len(values), -1, self.group_size)
        return grouped - self.zero[..., None]

    def stored(self, values: torch.Tensor) -> QuantizedWeight:
        kind = torch.int8 if self.symmetric else torch.uint8
        grouped = values.reshape(len(values), -1, self.group_size).to(kind)
        zero = None if self.symmetric else self.zero[..., None].to(torch.uint8)
        return QuantizedWeight(grouped, self.scale[..., None].contiguous(), zero, 4)


def _damped(moments: torch.Tensor) -> torch.Tensor:
    matrix = moments.double().clone()
    mean = float(matrix.diagonal().mean())
    matrix.diagonal().add_(_DAMPING * mean if mean > 0 else 1.0)
    return matrix


def _searched_grid(weight: torch.Tensor, group_size: int, symmetric: bool) -> _Grid:
    """The grid of each group with the least squared error of rounding to nearest."""
    block = weight.reshape(len(weight), -1, group_size)
    top, bottom = block.amax(-1).clamp_min_(0), block.amin(-1).clamp_max_(0)
    best: _Grid | None = None
    least = torch.empty(0)
    for share in _SHARES:
        wide = torch.maximum(top / 7, -bottom / 8) if symmetric else (top - bottom) / 15
        scale = torch.where(wide == 0, torch.ones_like(wide), wide * share)
        zero = (-bottom * share / scale).round_().clamp_(0, 15)
        if symmetric:
            zero.zero_()
        found = _Grid(scale[..., None], zero[..., None], group_size, symmetric)
        error = (found.round(block, slice(None))[1] - block).square().sum(-1)
        if best is None:
            best, least = _Grid(scale, zero, group_size, symmetric), error
            continue
        better = error < least
        least = torch.where(better, error, least)
        best = _Grid(
            torch.where(better, scale, best.scale),
            torch.where(better, zero, best.zero),
            group_size,
            symmetric,
        )
    assert best is not None
    return best


def _compensated(weight: torch.Tensor, moments: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """The integers by GPTQ, columns with large inputs first."""
    order = torch.argsort(moments.diagonal(), descending=True, stable=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments[order][:, order]))
    upper = torch.linalg.cholesky(inverse, upper=True).float()
    left = weight[:, order]
    values = torch.empty_like(left)
    columns = order.tolist()
    for first in range(0, len(columns), _BLOCK):
        end = min(first + _BLOCK, len(columns))
        errors = torch.empty((len(weight), end - first))
        for at in range(first, end):
            exact = left[:, at]
            values[:, at], rounded = grid.round(exact, columns[at] // grid.group_size)
            error = (exact - rounded) / upper[at, at]
            left[:, at + 1 : end] -= error[:, None] * upper[None, at, at + 1 : end]
            errors[:, at - first] = error
        left[:, end:] -= errors @ upper[first:end, end:]
    return values[:, torch.argsort(order)]


def _fitted(
    weight: torch.Tensor, moments: torch.Tensor, values: torch.Tensor, grid: _Grid
) -> _Grid:
    """The scales with which given integers bring the products nearest: least squares per row."""
    offsets = grid.offsets(values)
    groups = offsets.shape[1]
    step = max(1, _NORMAL_ELEMENTS // groups**2)
    scale = torch.cat(
        [
            _least_squares(rows, exact, moments)
            for rows, exact in zip(
                torch.split(offsets, step), torch.split(weight, step), strict=True
            )
        ]
    )
    usable = (scale > 0) & scale.isfinite()
    chosen = torch.where(usable, scale, grid.scale)
    return _Grid(chosen, grid.zero, grid.group_size, grid.symmetric)


def _least_squares(
    offsets: torch.Tensor, weight: torch.Tensor, moments: torch.Tensor
) -> torch.Tensor:
    rows, groups, size = offsets.shape
    normal = torch.empty((rows, groups, groups))
    for group in range(groups):
        seen = offsets[:, group] @ moments[group * size : (group + 1) * size]
        normal[:, group] = (seen.reshape(rows, groups, size) * offsets).sum(-1)
    wanted = ((weight @ moments).reshape(rows, groups, size) * offsets).sum(-1)
    # A group of nothing but zeros has no scale; 1 on its diagonal keeps the others solvable.
    diagonal = normal.diagonal(dim1=1, dim2=2)
    diagonal.copy_(torch.where(diagonal > 0, diagonal * (1 + 1e-6), torch.ones_like(diagonal)))
    scale: torch.Tensor = torch.linalg.solve(normal, wanted)
    return scale


def _improved(
    weight: torch.Tensor, moments: torch.Tensor, values: torch.Tensor, grid: _Grid
) -> torch.Tensor:
    """The integers after one pass in which each becomes the best beside all others."""
    values = values.clone()
    stood = (grid.offsets(values) * grid.scale[..., None]).flatten(1)
    pull = (weight - stood) @ moments
    diagonal = moments.diagonal()
    for first in range(0, weight.shape[1], _BLOCK):
        block = slice(first, min(first + _BLOCK, weight.shape[1]))
        near, before = pull[:, block].clone(), stood[:, block].clone()
        for at in range(block.start, block.stop):
            wanted = stood[:, at] + near[:, at - first] / diagonal[at]
            values[:, at], rounded = grid.round(wanted, at // grid.group_size)
            near -= (rounded - stood[:, at])[:, None] * moments[None, at, block]
            stood[:, at] = rounded
        pull -= (stood[:, block] - before) @ moments[block]
    return values

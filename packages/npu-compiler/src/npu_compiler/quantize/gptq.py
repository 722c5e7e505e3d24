"""GPTQ: rounds weights by the second moments of their inputs."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch

from npu_command.whole_files import draft_of
from npu_compiler.errors import OptionError
from npu_compiler.openvino_core import openvino_core
from npu_compiler.quantize.compress import WeightUses, replace_weight, weight_uses
from npu_compiler.quantize.weights import QuantizedWeight, fitting_group, quantize_weight

__all__ = ["SegmentedModel", "compress_by_moments", "round_by_moments"]

# GPTQ (Frantar et al., 2022, arXiv:2210.17323) rounds the columns of a weight one after the other,
# and compensates the error of a column in the later columns. Three additions reduce the error of
# the products: columns with large inputs are first, in groups with fixed grids; each group's scale
# is then fitted to the integers; and each integer is optimized once more, given all others (Behdin
# et al., 2023, arXiv:2309.01885).

# Damping, as a share of the mean diagonal: keeps the inverse of few samples' moments finite.
_DAMPING = 0.01
# Columns whose corrections are applied to the rest of the matrix in one product.
_BLOCK = 64
# Shares of a group's span tried for its scale: clipping a few large values can be better.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
# Number of fits of the scales, each with a pass over the integers; more gain almost nothing.
_ROUNDS = 2
# Limit of elements in a batch of least squares problems.
_NORMAL_ELEMENTS = 1 << 24


def round_by_moments(
    weight: torch.Tensor,
    moments: torch.Tensor,
    *,
    group_size: int,
    symmetric: bool = False,
    drift: torch.Tensor | None = None,
) -> QuantizedWeight:
    """Rounds a matrix to 4 bits with minimal change of its products with typical inputs.

    With a drift, the target is the product with the inputs of the original model, so that the
    weight also compensates errors in its inputs (after Li et al., 2025, arXiv:2504.02692; this
    function solves for the best such weight and rounds it).

    Args:
        weight: (rows, columns), a float dtype.
        moments: sum of x x^T over inputs x of the product, (columns, columns), float32 or float64.
        group_size: elements along a row that share a scale; must divide the columns.
        symmetric: without zero points.
        drift: sum of (y - x) x^T, shaped like the moments; y is the input in the original model
            instead of x.

    Raises:
        OptionError: [quantize-weight] if weight is not a matrix or group_size does not divide it,
            [quantize-data] if moments or drift have another shape or are not finite.
    """
    if weight.dim() != 2 or weight.shape[1] % group_size:
        raise OptionError(
            "round_by_moments: `weight` must be a matrix with rows divisible by `group_size`, got "
            f"shape {tuple(weight.shape)}, group_size {group_size}. Choose one by fitting_group().",
            code="quantize-weight",
        )
    _check_sums(weight.shape[1], moments, moments if drift is None else drift)
    return _rounded(weight, _Moments.of(moments), group_size, symmetric, drift)


def _check_sums(columns: int, moments: torch.Tensor, drift: torch.Tensor) -> None:
    for name, sums in (("moments", moments), ("drift", drift)):
        if tuple(sums.shape) != (columns, columns) or not bool(sums.isfinite().all()):
            raise OptionError(
                f"round_by_moments: `{name}` must be finite, of shape ({columns}, {columns}), "
                f"got shape {tuple(sums.shape)}, {int((~sums.isfinite()).sum())} not finite. Pass "
                "the sums over all inputs of the product; calls must not overflow.",
                code="quantize-data",
            )


def _rounded(
    weight: torch.Tensor,
    moments: _Moments,
    group_size: int,
    symmetric: bool,
    drift: torch.Tensor | None,
) -> QuantizedWeight:
    exact = weight.detach().float()
    if drift is not None:
        moved = exact.double() @ drift.double()
        exact = exact + torch.cholesky_solve(moved.t(), moments.factor).t().float()
    grid = _searched_grid(exact, group_size, symmetric)
    values = _compensated(exact, moments, grid)
    near = moments.near
    for _ in range(_ROUNDS):
        grid = _fitted(exact, near, values, grid)
        values = _improved(exact, near, values, grid)
    grid = _fitted(exact, near, values, grid)
    return grid.stored(values)


@dataclass(frozen=True)
class _Grid:
    """The quantization grid of each group.

    Attributes:
        scale, zero: (rows, groups), or, by column, (groups, rows).
    """

    scale: torch.Tensor
    zero: torch.Tensor
    group_size: int
    symmetric: bool
    is_by_column: bool = False

    def by_column(self) -> _Grid:
        """Returns the grid for columns stored as rows."""
        scale, zero = self.scale.t().contiguous(), self.zero.t().contiguous()
        return _Grid(scale, zero, self.group_size, self.symmetric, is_by_column=True)

    def round(self, exact: torch.Tensor, group: int | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the integers, as floats, of one column or group, and the dequantized values."""
        if self.is_by_column:
            scale, zero = self.scale[group], self.zero[group]
        else:
            scale, zero = self.scale[:, group], self.zero[:, group]
        low, high = (-8, 7) if self.symmetric else (0, 15)
        values = (exact / scale).round_().add_(zero).clamp_(low, high)
        return values, (values - zero) * scale

    def offsets(self, values: torch.Tensor) -> torch.Tensor:
        """Returns integers minus zero points, (rows, groups, group size)."""
        grouped = values.reshape(len(values), -1, self.group_size)
        return grouped - self.zero[..., None]

    def stored(self, values: torch.Tensor) -> QuantizedWeight:
        kind = torch.int8 if self.symmetric else torch.uint8
        grouped = values.reshape(len(values), -1, self.group_size).to(kind)
        zero = None if self.symmetric else self.zero[..., None].to(torch.uint8)
        return QuantizedWeight(grouped, self.scale[..., None].contiguous(), zero, 4)


@dataclass(frozen=True)
class _Moments:
    """Damped moments and their factorizations, for all weights with these inputs.

    Attributes:
        near: moments in float32.
        factor: their lower Cholesky factor.
        order: columns, those with large inputs first.
        upper: the upper Cholesky factor of their inverse in that order, in float32.
    """

    near: torch.Tensor
    factor: torch.Tensor
    order: torch.Tensor
    upper: torch.Tensor

    @classmethod
    def of(cls, moments: torch.Tensor) -> _Moments:
        """Creates them from a sum of x x^T."""
        matrix = moments.double().clone()
        mean = float(matrix.diagonal().mean())
        matrix.diagonal().add_(_DAMPING * mean if mean > 0 else 1.0)
        factor = torch.linalg.cholesky(matrix)
        order = torch.argsort(matrix.diagonal(), descending=True, stable=True)
        inverse = torch.cholesky_inverse(factor)[order][:, order]
        upper = torch.linalg.cholesky(inverse, upper=True).float()
        return cls(matrix.float(), factor, order, upper)


def _searched_grid(weight: torch.Tensor, group_size: int, symmetric: bool) -> _Grid:
    """Returns the grid of each group with the least squared error of rounding to nearest."""
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


def _compensated(weight: torch.Tensor, moments: _Moments, grid: _Grid) -> torch.Tensor:
    """Returns the integers by GPTQ, columns with large inputs first."""
    order, upper = moments.order, moments.upper
    # Columns are stored as rows here and in `_improved`.
    left, grid = weight.t()[order], grid.by_column()
    values = torch.empty_like(left)
    columns = order.tolist()
    for first in range(0, len(columns), _BLOCK):
        end = min(first + _BLOCK, len(columns))
        errors = torch.empty((end - first, len(weight)))
        for at in range(first, end):
            exact = left[at]
            values[at], rounded = grid.round(exact, columns[at] // grid.group_size)
            error = (exact - rounded) / upper[at, at]
            left[at + 1 : end].addr_(upper[at, at + 1 : end], error, alpha=-1)
            errors[at - first] = error
        left[end:].addmm_(upper[first:end, end:].t(), errors, alpha=-1)
    return values[torch.argsort(order)].t()


def _fitted(
    weight: torch.Tensor, moments: torch.Tensor, values: torch.Tensor, grid: _Grid
) -> _Grid:
    """Returns the best scales for given integers, by least squares per row."""
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
    # A group of zeros has no scale; 1 on its diagonal keeps the system solvable.
    diagonal = normal.diagonal(dim1=1, dim2=2)
    diagonal.copy_(torch.where(diagonal > 0, diagonal * (1 + 1e-6), torch.ones_like(diagonal)))
    scale: torch.Tensor = torch.linalg.solve(normal, wanted)
    return scale


def _improved(
    weight: torch.Tensor, moments: torch.Tensor, values: torch.Tensor, grid: _Grid
) -> torch.Tensor:
    """Returns the integers after one pass that optimizes each, given all others."""
    stood = (grid.offsets(values) * grid.scale[..., None]).flatten(1)
    pull = ((weight - stood) @ moments).t().contiguous()
    stood, values, grid = stood.t().contiguous(), values.t().contiguous(), grid.by_column()
    diagonal = moments.diagonal().tolist()
    for first in range(0, weight.shape[1], _BLOCK):
        block = slice(first, min(first + _BLOCK, weight.shape[1]))
        near, before = pull[block].clone(), stood[block].clone()
        for at in range(block.start, block.stop):
            wanted = stood[at] + near[at - first] / diagonal[at]
            values[at], rounded = grid.round(wanted, at // grid.group_size)
            near.addr_(moments[at, block], rounded - stood[at], alpha=-1)
            stood[at] = rounded
        pull.addmm_(moments[block].t(), stood[block] - before, alpha=-1)
    return values.t()


# The fused elementwise kernels (Snippets) fail on pieces of BERT (OpenVINO 2026.4.1: "All consumers
# of a Scalar expression are expected to have the same loop IDs").
_OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}

_Array = np.ndarray[Any, Any]
# A node's number and output index.
_Key = tuple[int, int]


class SegmentedModel:
    """A model that runs in segments, with each sample's values at the current position.

    Finished nodes are cut off: the remaining nodes read parameters instead. Only values that
    remaining nodes read are stored.

    Args:
        model: consumed; clone it before if it is needed.
        samples: one call each: arrays for the model's inputs, in order.
    """

    def __init__(self, model: ov.Model, samples: Sequence[Sequence[Any]]) -> None:
        self._model = model  # keeps the remaining nodes alive
        self._values: dict[_Key, list[_Array]] = {}
        self._parameters: dict[_Key, ov.Node] = {}
        for index, parameter in enumerate(model.get_parameters()):
            self._keep(parameter, [np.asarray(call[index]) for call in samples])

    def advance(self, port: ov.Input) -> list[_Array]:
        """Runs up to a remaining node; returns its values at a port, one array per sample."""
        if _key(port.get_source_output()) not in self._values:
            self._run_to(port.get_source_output().get_node())
        return self._values[_key(port.get_source_output())]

    def _run_to(self, last: ov.Node) -> None:
        piece = self._piece(last)
        numbers = {node.get_instance_id() for node in piece}
        inputs = [key for key in self._values if _is_read(self._parameters[key], numbers)]
        outputs = [
            output
            for node in self._varying(piece)
            for output in node.outputs()
            if any(_number(target) not in numbers for target in output.get_target_inputs())
        ]
        parameters = [self._parameters[key] for key in inputs]
        program = openvino_core().compile_model(ov.Model(outputs, parameters), "CPU", _OPTIONS)
        found: list[list[_Array]] = [[] for _ in outputs]
        for call in zip(*(self._values[key] for key in inputs), strict=True):
            results = program(list(call))
            for values, index in zip(found, range(len(outputs)), strict=True):
                values.append(np.array(results[index]))
        for output, values in zip(outputs, found, strict=True):
            made = ops.parameter(output.get_partial_shape(), output.get_element_type())
            output.replace(made.output(0))
            self._keep(made, values)
        for key in inputs:
            targets = self._parameters[key].output(0).get_target_inputs()
            if all(_number(target) in numbers for target in targets):
                del self._values[key], self._parameters[key]

    def _piece(self, last: ov.Node) -> list[ov.Node]:
        """Returns the nodes from the current position to a node, including it, inputs first."""
        found: dict[int, ov.Node] = {}
        left = [(last, False)]
        while left:
            node, is_done = left.pop()
            number = node.get_instance_id()
            if number in found or (number, 0) in self._values:
                continue
            if is_done:
                found[number] = node
                continue
            left.append((node, True))
            left += [(value.get_node(), False) for value in node.input_values()]
        return list(found.values())

    def _varying(self, piece: Sequence[ov.Node]) -> list[ov.Node]:
        """Returns nodes that depend on the samples; others stay, since some must be constants."""
        varying: dict[int, ov.Node] = {}
        for node in piece:
            sources = (_key(value) for value in node.input_values())
            if any(key in self._values or key[0] in varying for key in sources):
                varying[node.get_instance_id()] = node
        return list(varying.values())

    def _keep(self, parameter: ov.Node, values: list[_Array]) -> None:
        key = _key(parameter.output(0))
        self._values[key], self._parameters[key] = values, parameter


def _key(output: ov.Output) -> _Key:
    return output.get_node().get_instance_id(), output.get_index()


def _number(target: ov.Input) -> int:
    return int(target.get_node().get_instance_id())


def _is_read(parameter: ov.Node, numbers: set[int]) -> bool:
    return any(_number(target) in numbers for target in parameter.output(0).get_target_inputs())


# NNCF's GPTQ is less accurate. On SmolLM2-135M-Instruct (groups of 64, 64 calls), NNCF with AWQ and
# scale estimation lost 8.3 % of perplexity, this 3.8 % (2026-11-20). NNCF takes a product's inputs
# from the rounded layers before, and does not compensate their errors.

# Minimum number of elements of an embedding that is compressed.
_SMALL_TABLE = 4096


def compress_by_moments(
    model: ov.Model,
    samples: Sequence[Sequence[Any]],
    *,
    group_size: int | None,
    symmetric: bool = False,
    kept: Path | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> None:
    """Compresses weights of matrix products to int4, in place, one after the other.

    Each weight is rounded for inputs from the already rounded weights, so that its product is
    closest to that of the original model, which runs alongside. Embeddings, the last product, and
    rows that no group of 32 or more divides become int8. A weight of several products is rounded
    for the first.

    Args:
        model: float32, with unique node names.
        samples: one call each: arrays for the model's inputs, in order.
        group_size: 32, 64 or 128, or None for one scale per output channel.
        symmetric: without zero points.
        kept: a folder that stores each rounded weight. A later call with equal arguments reuses
            them. None to store nothing.
        on_progress: called with the number of rounded weights, and of all.
    """
    position = {node.get_friendly_name(): at for at, node in enumerate(model.get_ordered_ops())}

    def first_product(uses: WeightUses) -> int:
        return position[uses.products[0].get_friendly_name()] if uses.products else -1

    original = model.clone()
    large = (uses for uses in weight_uses(model) if uses.products or uses.elements >= _SMALL_TABLE)
    found = sorted(large, key=first_product)
    rounded: list[tuple[WeightUses, int]] = []
    for uses in found:
        group = fitting_group(uses.columns, group_size)
        is_last = uses is found[-1] and len(found) > 1
        if group is None or uses.gathers or is_last:
            replace_weight(uses, quantize_weight(uses.matrix(), bits=8, symmetric=symmetric))
        else:
            rounded.append((uses, group))
    store = None if kept is None else _Store(kept)
    _round_in_turn(
        original, model.clone(), rounded, samples=samples, symmetric=symmetric, store=store,
        on_progress=on_progress or (lambda done, total: None),
    )  # fmt: skip
    model.validate_nodes_and_infer_types()


def _round_in_turn(
    original: ov.Model,
    twin: ov.Model,
    rounded: Sequence[tuple[WeightUses, int]],
    *,
    samples: Sequence[Sequence[Any]],
    symmetric: bool,
    store: _Store | None,
    on_progress: Callable[[int, int], object],
) -> None:
    """Rounds weights one by one; runs the original and the rounded model alongside."""
    exact_nodes = {node.get_friendly_name(): node for node in original.get_ops()}
    nodes = {node.get_friendly_name(): node for node in twin.get_ops()}
    exact_run, run = SegmentedModel(original, samples), SegmentedModel(twin, samples)
    seen: list[_Array] = []
    moments: _Moments | None = None
    drift = torch.empty(0)
    for number, (uses, group) in enumerate(rounded):
        on_progress(number, len(rounded))
        names = [product.get_friendly_name() for product in uses.products]
        known = None if store is None else store.read(number, symmetric)
        if known is not None and known.values.numel() == uses.elements:
            _set_weight([nodes[name] for name in names], known, uses.is_transposed)
            replace_weight(uses, known)
            continue
        values = run.advance(nodes[names[0]].input(0))
        exact_values = exact_run.advance(exact_nodes[names[0]].input(0))
        if values is not seen:  # products with the same input share its sums
            seen = values
            is_transposed = bool(nodes[names[0]].get_attributes()["transpose_a"])
            sums, drift = _sums(exact_values, values, is_transposed)
            _check_sums(uses.columns, sums, drift)
            moments = _Moments.of(sums)
        assert moments is not None, "the first weight has set it"
        quantized = _rounded(uses.matrix(), moments, group, symmetric, drift)
        if store is not None:
            store.write(number, quantized)
        _set_weight([nodes[name] for name in names], quantized, uses.is_transposed)
        replace_weight(uses, quantized)
    on_progress(len(rounded), len(rounded))


class _Store:
    """A folder of rounded weights."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def read(self, number: int, symmetric: bool) -> QuantizedWeight | None:
        """Returns a weight; None if it is missing or damaged."""
        damage = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
        with contextlib.suppress(*damage), np.load(self._path(number)) as found:
            values, scale = (torch.from_numpy(found[name]) for name in ("values", "scale"))
            zero = None if symmetric else torch.from_numpy(found["zero"])
            return QuantizedWeight(values, scale, zero, 4)
        return None

    def write(self, number: int, weight: QuantizedWeight) -> None:
        """Writes a weight atomically."""
        arrays: dict[str, Any] = {"values": weight.values.numpy(), "scale": weight.scale.numpy()}
        if weight.zero_point is not None:
            arrays["zero"] = weight.zero_point.numpy()
        with draft_of(self._path(number)) as draft, draft.open("wb") as file:
            np.savez(file, **arrays)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:04}.npz"


def _sums(
    exact: Sequence[_Array], values: Sequence[_Array], is_transposed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns moments and drift of a product's inputs, for round_by_moments."""
    columns = values[0].shape[-2 if is_transposed else -1]
    moments = torch.zeros((columns, columns), dtype=torch.float64)
    drift = torch.zeros_like(moments)
    for before, now in zip(exact, values, strict=True):
        x, y = _rows(now, is_transposed), _rows(before, is_transposed)
        moments += x.t() @ x
        drift += (y - x).t() @ x
    return moments, drift


def _rows(value: _Array, is_transposed: bool) -> torch.Tensor:
    rows = torch.from_numpy(np.swapaxes(value, -1, -2) if is_transposed else value)
    return rows.reshape(-1, rows.shape[-1])


def _set_weight(
    products: Sequence[ov.Node], quantized: QuantizedWeight, is_transposed: bool
) -> None:
    matrix = quantized.dequantize()
    values = matrix if is_transposed else matrix.t()
    constant = ops.constant(values.contiguous().numpy())
    for product in products:
        product.input(1).replace_source_output(constant.output(0))

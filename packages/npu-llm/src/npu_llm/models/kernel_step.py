"""Saves a traced step as a kernel program with packed weights, and reads the weights back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from npu_compiler.errors import LoweringError
from npu_compiler.kernel_programs import Lowered, lower_to_kernels
from npu_compiler.quantize import QuantizedWeight, fitting_group, quantize_weight
from npu_llm.capture.compression import Compression
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.gguf.repacking import REPACKED
from npu_llm.models.entry import KERNEL_PROGRAM, REFERENCE, STEP_WEIGHTS
from npu_llm.models.stored_weights import arranged, pack_exact_floats, pack_stored
from npu_llm.precision import Precision, kernels_cache
from npu_llm.progress import Advance, Progress
from npu_llm.verification.reference import Rounding, TorchReference
from npu_ops.kernel_programs.program import KernelProgram, LayerShape, Recipe
from npu_ops.kernel_programs.weights import (
    BLOCK_KINDS,
    BLOCK_OUTPUTS,
    PackedKind,
    PackedLinear,
    pack,
    pack_integers,
    read_weights,
    unpack,
    write_weights,
)

if TYPE_CHECKING:
    from npu_llm.capture.step import CapturedStep  # imports transformers

__all__ = [
    "POSITIONS",
    "KernelStep",
    "PackedParameters",
    "lower_step",
    "pack_weights",
    "refusal_of",
    "rounding_in",
    "save_kernel_step",
    "unpack_rows",
    "why_not",
]

_Weight = TypeVar("_Weight")
# Positions of a model without a limit.
POSITIONS = 1 << 16


@dataclass(frozen=True)
class KernelStep:
    """A model's step as a kernel program before packing.

    Attributes:
        lowered: the program, and the parameters behind its weights.
        weights: the values of the parameters.
        compute: runs the model in torch with the weights of a packed file.
        rounded: see pack_weights.
        limits: conditions on sizes that a trace assumed, as text.
    """

    lowered: Lowered
    weights: StreamedWeights
    compute: Callable[[Path, Advance], TorchReference]
    rounded: Mapping[int, QuantizedWeight] = field(default_factory=dict)
    limits: tuple[str, ...] = ()


def save_kernel_step(
    step: KernelStep,
    folder: Path,
    *,
    precision: Precision,
    progress: Progress,
    compression: Compression,
) -> dict[str, Any]:
    """Saves a model's step as a kernel program.

    Args:
        step: the program and its weights.
        folder: output folder for the program, its weights, and torch's results for a few tokens.
        precision: storage type of the weights.
        progress: receives the stages.
        compression: quantization options.

    Returns:
        Facts about the step: its pipeline, its number of layers, and the block types that were
        repacked, with target and loss.
    """
    lowered = step.lowered
    (folder / KERNEL_PROGRAM).write_text(json.dumps(lowered.program.as_dict()))
    with progress.stage("pack"):
        losses: dict[str, float] = {}
        packed = pack_weights(
            lowered,
            step.weights,
            precision=precision,
            compression=compression,
            rounded=step.rounded,
            losses=losses,
        )
        count = len(lowered.program.weights)
        counted = _counted(packed, count, progress.advance)
        write_weights(folder / STEP_WEIGHTS, counted, count=count)
    with progress.stage("reference"):
        reference = step.compute(folder / STEP_WEIGHTS, progress.advance)
        reference.write(folder / REFERENCE)
    return {
        "pipeline": "kernels",
        "layers": len(lowered.program.layers),
        "limits": list(step.limits),
        "repacked": {kind: (REPACKED[kind], loss) for kind, loss in losses.items()},
    }


def rounding_in(precision: Precision) -> Rounding:
    """Returns the kernels' rounding of values."""
    return Rounding(getattr(torch, kernels_cache(precision)), precision.activation_group)


def refusal_of(captured: CapturedStep, context: int | None) -> str | None:
    """Returns the reason that a traced step is not a kernel program; None if it is one.

    Args:
        captured: the step, without in-place writes.
        context: the model's context in tokens; None if it sets no limit.
    """
    try:
        lower_step(captured, context)
    except LoweringError as refusal:
        return why_not(refusal)
    return None


def why_not(refusal: LoweringError) -> str:
    """Returns a reason as part of a sentence: the call, its Python line, and the reason."""
    call = str(refusal).partition(" must ")[0]
    return f"{call} {refusal.reason}" if refusal.reason else str(refusal).rstrip(".")


def lower_step(captured: CapturedStep, context: int | None) -> Lowered:
    """Returns the program of a step.

    Args:
        captured: the step, without in-place writes.
        context: the model's context in tokens; None if it sets no limit.

    Raises:
        npu_compiler.errors.LoweringError: [not-row-wise] if it is not a kernel program.
    """
    if captured.states:
        reason = "its model has states besides keys and values, which no kernel supports"
        raise LoweringError(
            f"the step must be row-wise, got another: {reason}. Run it in the dynamic pipeline.",
            code="not-row-wise",
            reason=reason,
        )
    shapes = [
        LayerShape(layer.key_heads, layer.key_dim, layer.value_dim) for layer in captured.layers
    ]
    return lower_to_kernels(
        captured.graph_module,
        inputs=captured.inputs,
        layers=shapes,
        vocabulary=captured.vocabulary,
        positions=context or POSITIONS,
    )


def _counted(
    items: Iterable[tuple[str, _Weight]], total: int, advance: Advance
) -> Iterator[tuple[str, _Weight]]:
    """Yields the items, and reports the current one."""
    for number, (name, weight) in enumerate(items, 1):
        advance(number / total, f"weight {number:,} of {total:,}, {name}")
        yield name, weight


# Smaller weights are not quantized, as in npu_compiler.quantize.
_FEWEST_ELEMENTS = 4096
_LARGEST_HALF = torch.finfo(torch.float16).max
_INTEGERS = ("int8", "int4")


def pack_weights(
    lowered: Lowered,
    weights: StreamedWeights,
    *,
    precision: Precision,
    compression: Compression,
    rounded: Mapping[int, QuantizedWeight] | None = None,
    losses: dict[str, float] | None = None,
) -> Iterator[tuple[str, PackedLinear | torch.Tensor]]:
    """Yields a program's packed weights, each created on demand.

    In the file's precision a weight keeps its blocks or floats. In int8 and int4, a weight that a
    file stores as integers supported by the kernels keeps these and their scales
    (npu_llm.checkpoint.quantized, npu_llm.gguf.weights); other weights are rounded to nearest.

    Args:
        lowered: the program, and the parameters behind its weights.
        weights: the values of the parameters.
        precision: storage type of the weights.
        compression: quantization options.
        rounded: existing integers by parameter address, which are packed unchanged, with scales of
            int4 in float16.
        losses: receives the largest loss of each repacked block type.
    """
    if losses is None:
        losses = {}
    packer = _Packer(lowered, weights, precision, compression, rounded or {}, losses)
    for name, recipe in lowered.program.weights.items():
        yield name, packer.weight(name, recipe)


@dataclass(frozen=True)
class _Form:
    """An integer storage format: bits, and weights of a row per scale."""

    bits: int
    group: int | None = None


class _Packer:
    def __init__(
        self,
        lowered: Lowered,
        weights: StreamedWeights,
        precision: Precision,
        compression: Compression,
        rounded: Mapping[int, QuantizedWeight],
        losses: dict[str, float],
    ) -> None:
        self._losses = losses
        self._lowered = lowered
        self._made = rounded
        self._weights = weights
        self._wanted = precision.weights
        self._compression = compression
        self._products = _products(lowered.program)

    def weight(self, name: str, recipe: Recipe) -> PackedLinear | torch.Tensor:
        """Returns one packed weight."""
        if recipe.kind == "table":
            return self._lowered.tables[name]
        if recipe.kind == "vector":
            return (self._joined(recipe).float() + recipe.added).flatten()
        sources = [self._lowered.sources[source] for source in recipe.sources]
        if sum(source.numel() for source in sources) < _FEWEST_ELEMENTS:
            return pack(self._joined(recipe), "float32")
        if self._wanted == "file":
            return self._as_stored(recipe)
        if self._wanted not in _INTEGERS:
            return self._pack_floats(recipe, cast(PackedKind, self._wanted))
        columns = sources[0].shape[-2 if recipe.transposed else -1]
        kept = self._kept(recipe)
        form = self._form(name, recipe, columns, kept)
        if form is None:
            return self._pack_floats(recipe, "float16")
        return self._pack_integers(recipe, form, kept)

    def _as_stored(self, recipe: Recipe) -> PackedLinear:
        stored = pack_stored(recipe, self._lowered, self._weights, self._losses)
        if stored is not None:
            return stored
        kept = self._in_files(recipe)
        if kept:
            return self._pack_integers(recipe, _form_of(next(iter(kept.values()))), kept)
        return pack_exact_floats(self._joined(recipe))

    def _form(
        self,
        name: str,
        recipe: Recipe,
        columns: int,
        kept: Mapping[str, QuantizedWeight],
    ) -> _Form | None:
        """Returns the integer format of a weight; None for floats."""
        if kept:
            return _form_of(next(iter(kept.values())))
        if name not in self._products:
            return None  # its rows are looked up individually
        if self._wanted == "int4" and not recipe.keeps_precision:
            group = fitting_group(columns, self._compression.group_size)
            if group is not None:
                return _Form(4, group)
        return _Form(8)

    def _kept(self, recipe: Recipe) -> dict[str, QuantizedWeight]:
        """Returns the integers that are not rounded again, by source name."""
        kept = self._in_files(recipe)
        if kept or self._wanted != "int4":
            return kept
        made = {
            source: self._made[address]
            for source in recipe.sources
            if (address := self._lowered.sources[source].data_ptr()) in self._made
        }
        if not self._made:
            held = {source: self._integers(source, recipe) for source in recipe.sources}
            made = {source: found for source, found in held.items() if found is not None}
        # All outputs of a weight share a format; if some have few bits, all do.
        form = min(map(_form_of, made.values()), key=lambda one: one.bits, default=None)
        return {source: one for source, one in made.items() if _form_of(one) == form}

    def _in_files(self, recipe: Recipe) -> dict[str, QuantizedWeight]:
        """Returns the sources' integers from the files if all are in one format.

        int4 integers have 4 bits.
        """
        found: dict[str, QuantizedWeight] = {}
        for source in recipe.sources:
            integers = self._integers(source, recipe)
            if integers is None or (self._wanted == "int4" and integers.bits != 4):
                return {}
            found[source] = integers
        return found if len({_form_of(one) for one in found.values()}) == 1 else {}

    def _integers(self, source: str, recipe: Recipe) -> QuantizedWeight | None:
        return self._weights.integers(
            self._lowered.sources[source], is_transposed=recipe.transposed, index=recipe.index
        )

    def _value(self, source: str, recipe: Recipe) -> torch.Tensor:
        """Returns a source as (outputs, inputs), or a vector; valid until the next call."""
        value = self._weights.read(self._lowered.sources[source].detach())
        value = value if recipe.index is None else value[recipe.index]
        return value.t() if recipe.transposed else value

    def _joined(self, recipe: Recipe) -> torch.Tensor:
        if len(recipe.sources) == 1:
            joined = self._value(recipe.sources[0], recipe)
        else:
            joined = torch.cat([self._value(source, recipe).clone() for source in recipe.sources])
        return arranged(joined, recipe, self._lowered.tables)

    def _pack_floats(self, recipe: Recipe, kind: PackedKind) -> PackedLinear:
        value = self._joined(recipe)
        fits = kind != "float16" or float(value.detach().abs().max()) <= _LARGEST_HALF
        return pack(value, kind if fits else "float32")

    def _pack_integers(
        self, recipe: Recipe, form: _Form, kept: Mapping[str, QuantizedWeight]
    ) -> PackedLinear:
        parts = [
            kept[source] if source in kept else self._rounded(self._value(source, recipe), form)
            for source in recipe.sources
        ]
        middle = 2 ** (form.bits - 1)
        tables = self._lowered.tables
        values = torch.cat([_unsigned(part, middle) for part in parts])
        scales = torch.cat([part.scale[..., 0] for part in parts])
        zeros = None
        if any(part.zero_point is not None for part in parts):
            zeros = torch.cat([_zeros(part, middle) for part in parts])
            zeros = arranged(zeros, recipe, tables)
        return pack_integers(
            arranged(values, recipe, tables),
            arranged(scales, recipe, tables),
            zeros,
            bits=form.bits,
        )

    def _rounded(self, value: torch.Tensor, form: _Form) -> QuantizedWeight:
        return quantize_weight(
            value,
            bits=form.bits,
            group_size=form.group,
            symmetric=self._compression.symmetric,
        )


def _form_of(part: QuantizedWeight) -> _Form:
    return _Form(part.bits, None if part.bits == 8 else part.values.shape[2])


def _unsigned(part: QuantizedWeight, middle: int) -> torch.Tensor:
    """Returns (outputs, groups, size) uint8."""
    if part.zero_point is not None:
        return part.values
    return (part.values.to(torch.int16) + middle).to(torch.uint8)


def _zeros(part: QuantizedWeight, middle: int) -> torch.Tensor:
    """Returns (outputs, groups) uint8."""
    if part.zero_point is not None:
        return part.zero_point[..., 0]
    return torch.full(part.scale.shape[:2], middle, dtype=torch.uint8)


def _products(program: KernelProgram) -> set[str]:
    """Returns the weights used in products; others are only looked up."""
    found: set[str] = set()
    for one in program.instructions:
        for name in ("weight", "gate_up", "down"):
            value = getattr(one, name, None)
            found |= {value} if isinstance(value, str) else set(value or ())
    return found


_STORED_INTEGERS = ("int8", "int4", *BLOCK_KINDS, "mixed")
_NIBBLES = 0x0F0F0F0F
_SLAB_INPUTS = 64


@dataclass(frozen=True)
class _Place:
    """The location of a parameter's matrix: rows of a packed weight.

    Attributes:
        weight: the packed weight.
        rows: its outputs that belong to the parameter, in the parameter's order; None for all in
            their own order.
        is_transposed: whether the parameter is (inputs, outputs).
    """

    weight: PackedLinear
    rows: torch.Tensor | None
    is_transposed: bool

    def read(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the matrix, or some rows, in the parameter's layout."""
        chosen = self.rows
        if rows is not None:
            chosen = rows if chosen is None else chosen[rows]
        matrix = unpack_rows(self.weight, chosen)
        return matrix.t() if self.is_transposed else matrix


class PackedParameters:
    """The parameters that a packed file stores as integers, by address."""

    def __init__(self, lowered: Lowered, path: Path) -> None:
        """Maps the file.

        Args:
            lowered: the program of the weights, and the parameters behind them.
            path: the file.
        """
        # By address, then by index for stacked experts; None for a matrix.
        self._places: dict[int, dict[int | None, _Place]] = {}
        self._latest: tuple[int, torch.Tensor] | None = None
        weights = read_weights(path)
        for name, recipe in lowered.program.weights.items():
            packed = weights[name]
            if isinstance(packed, PackedLinear) and packed.kind in _STORED_INTEGERS:
                self._note(packed, recipe, lowered)

    def _note(self, packed: PackedLinear, recipe: Recipe, lowered: Lowered) -> None:
        sources = [lowered.sources[source] for source in recipe.sources]
        sizes = [source.shape[-1 if recipe.transposed else -2] for source in sources]
        order = arranged(torch.arange(packed.outputs), recipe, lowered.tables)
        rows = torch.empty_like(order)
        rows[order] = torch.arange(packed.outputs)
        is_plain = (
            len(sources) == 1 and torch.equal(order, rows) and bool((order[1:] > order[:-1]).all())
        )
        for source, part in zip(sources, torch.split(rows, sizes), strict=True):
            place = _Place(packed, None if is_plain else part, recipe.transposed)
            self._places.setdefault(source.data_ptr(), {})[recipe.index] = place

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a parameter's stored values; None if it is not stored as integers.

        Args:
            tensor: a parameter: a matrix, or those of experts (experts, rows, columns).
        """
        places = self._places.get(tensor.data_ptr())
        if places is None:
            return None
        if None in places:
            return places[None].read()
        # Experts are requested one by one, each time with all of them named.
        if self._latest is None or self._latest[0] != tensor.data_ptr():
            stacked = torch.stack([places[index].read() for index in range(len(tensor))])
            self._latest = tensor.data_ptr(), stacked
        return self._latest[1]

    def rows(self, tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
        """Returns some rows of the result of `read` (*indices.shape, columns), or None."""
        place = self._places.get(tensor.data_ptr(), {}).get(None)
        if place is None or place.is_transposed:
            return None
        return place.read(indices.reshape(-1)).reshape(*indices.shape, -1)


def unpack_rows(weight: PackedLinear, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Returns some rows of the matrix that packed integers represent.

    It reads the rows' blocks only, and moves four elements at a time:
    npu_ops.kernel_programs.weights.unpack takes four times as long (SmolLM2 in int4, 2026-11-23).

    Args:
        weight: a packed weight of integers or blocks.
        rows: (count,) int64, indices of its outputs; None for all.

    Returns:
        (count, inputs) float32.
    """
    if weight.kind not in _INTEGERS:
        return unpack(weight, rows)
    rows = torch.arange(weight.outputs) if rows is None else rows
    blocks, at = torch.unique(rows // BLOCK_OUTPUTS, return_inverse=True)
    lanes = at * BLOCK_OUTPUTS + rows % BLOCK_OUTPUTS
    all_blocks, slabs = -(-weight.outputs // BLOCK_OUTPUTS), -(-weight.inputs // _SLAB_INPUTS)
    vectors = 16 if weight.kind == "int8" else 8
    # Whole blocks in order need no second selection.
    are_whole = torch.equal(lanes, torch.arange(len(blocks) * BLOCK_OUTPUTS))

    def by_row(tensor: torch.Tensor) -> torch.Tensor:
        """From (blocks, columns, 16) to (rows, columns)."""
        chosen = tensor if len(blocks) == all_blocks else tensor[blocks]
        rows_of = chosen.transpose(1, 2).reshape(len(blocks) * BLOCK_OUTPUTS, tensor.shape[1])
        return rows_of if are_whole else rows_of[lanes]

    # Four adjacent inputs of an output are one element here.
    fours = by_row(weight.data.view(torch.int32).view(all_blocks, slabs * vectors, BLOCK_OUTPUTS))
    if weight.kind == "int4":
        halves = fours.view(len(rows), slabs, 1, vectors)
        both = torch.cat([halves & _NIBBLES, (halves >> 4) & _NIBBLES], 2)
        fours = both.view(len(rows), slabs * 2 * vectors)
    # Indexing keeps the order of the axes in memory.
    values = fours.contiguous().view(torch.uint8)[:, : weight.inputs].float()
    assert weight.scales is not None, "integers have scales"
    if weight.kind == "int8":
        values -= 128.0 if weight.zeros is None else weight.zeros[rows, None].float()
        return values.mul_(weight.scales[rows, None])

    grouped = values.view(len(rows), weight.inputs // weight.group, weight.group)
    grouped -= 8.0 if weight.zeros is None else by_row(weight.zeros)[..., None].float()
    return grouped.mul_(by_row(weight.scales)[..., None].float()).view(len(rows), weight.inputs)

"""Packs the weights of a kernel program one by one, from a model's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from npu_compiler.kernel_programs import Lowered
from npu_compiler.quantize import QuantizedWeight, fitting_group, quantize_weight
from npu_llm.capture.compression import Compression
from npu_llm.checkpoint.exact_blocks import exact_blocks
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.entries.packed_parameters import arranged
from npu_llm.precision import Precision
from npu_ops.kernel_programs.program import KernelProgram, Recipe
from npu_ops.kernel_programs.weights import PackedKind, PackedLinear, pack, pack_integers

__all__ = ["pack_weights"]

# Smaller weights stay as they are, as in npu_compiler.quantize.
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
) -> Iterator[tuple[str, PackedLinear | torch.Tensor]]:
    """Yields a program's weights, each made when it is asked for.

    In int4, a weight that a file holds in blocks which the kernels can have as they are keeps its
    integers and scales (npu_llm.checkpoint.exact_blocks); others are rounded to the nearest values.

    Args:
        lowered: the program, and the parameters that its weights are made of.
        weights: the values of the parameters.
        precision: how to store them.
        compression: how weights of few bits are made.
        rounded: integers that were made already, by the addresses of the parameters: they are
            packed as they are, with scales of int4 in float16.
    """
    packer = _Packer(lowered, weights, precision, compression, rounded or {})
    for name, recipe in lowered.program.weights.items():
        yield name, packer.weight(name, recipe)


@dataclass(frozen=True)
class _Form:
    """How integers are stored: of how many bits, and how many of a row share a scale."""

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
    ) -> None:
        self._lowered = lowered
        self._made = rounded
        self._weights = weights
        self._wanted = precision.weights
        self._compression = compression
        self._products = _products(lowered.program)

    def weight(self, name: str, recipe: Recipe) -> PackedLinear | torch.Tensor:
        """Returns one weight."""
        if recipe.kind == "table":
            return self._lowered.tables[name]
        if recipe.kind == "vector":
            return (self._joined(recipe).float() + recipe.added).flatten()
        sources = [self._lowered.sources[source] for source in recipe.sources]
        if sum(source.numel() for source in sources) < _FEWEST_ELEMENTS:
            return pack(self._joined(recipe), "float32")
        if self._wanted not in _INTEGERS:
            return self._pack_floats(recipe, cast(PackedKind, self._wanted))
        columns = sources[0].shape[-2 if recipe.transposed else -1]
        kept = self._kept(recipe)
        form = self._form(name, recipe, columns, kept)
        if form is None:
            return self._pack_floats(recipe, "float16")
        return self._pack_integers(recipe, form, kept)

    def _form(
        self,
        name: str,
        recipe: Recipe,
        columns: int,
        kept: Mapping[str, QuantizedWeight],
    ) -> _Form | None:
        """Returns in which integers to store a weight; None for floats."""
        if kept:
            return _form_of(next(iter(kept.values())))
        if name not in self._products:
            return None  # rows of it are read, never all
        if self._wanted == "int4" and not recipe.keeps_precision:
            group = fitting_group(columns, self._compression.group_size)
            if group is not None:
                return _Form(4, group)
        return _Form(8)

    def _kept(self, recipe: Recipe) -> dict[str, QuantizedWeight]:
        """Returns the integers of the sources that are not rounded again, by the sources' names."""
        if self._wanted != "int4":
            return {}
        made = {
            source: self._made[address]
            for source in recipe.sources
            if (address := self._lowered.sources[source].data_ptr()) in self._made
        }
        if not self._made:
            blocks = {
                source: exact_blocks(self._value(source, recipe)) for source in recipe.sources
            }
            made = {source: found for source, found in blocks.items() if found is not None}
        # All outputs of a weight are in one form, and where some have few bits, all have.
        form = min(map(_form_of, made.values()), key=lambda one: one.bits, default=None)
        return {source: one for source, one in made.items() if _form_of(one) == form}

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
    """Returns the weights that rows are multiplied by; others are only looked up."""
    found: set[str] = set()
    for one in program.instructions:
        for name in ("weight", "gate_up", "down"):
            value = getattr(one, name, None)
            found |= {value} if isinstance(value, str) else set(value or ())
    return found

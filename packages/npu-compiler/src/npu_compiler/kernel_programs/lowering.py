"""Lowers captured steps to kernel programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.draft import Draft, Line, Part, keep_early, place
from npu_compiler.kernel_programs.fusion import fuse
from npu_compiler.kernel_programs.selection import select
from npu_ops.kernel_programs.program import (
    Append,
    Attend,
    Columns,
    Combine,
    Embed,
    Experts,
    Instruction,
    Keep,
    KernelProgram,
    LayerShape,
    Linear,
    Load,
    Norm,
    NormOptions,
    Rotate,
    Store,
)
from npu_runtime.public_calls import public_call

__all__ = ["Lowered", "as_program", "finish", "lower_to_kernels"]


_BY_EXPERT = ("gate_up", "down", "gate_up_bias", "down_bias")


@dataclass(frozen=True)
class Lowered:
    """A kernel program, and the sources of its weights."""

    program: KernelProgram
    # Weights computed by the compiler, by their names in recipes of tables and orders.
    tables: Mapping[str, torch.Tensor]
    # The model's parameters, by their names in other recipes.
    sources: Mapping[str, torch.Tensor]


@public_call
def lower_to_kernels(
    graph_module: fx.GraphModule,
    *,
    inputs: Sequence[str],
    layers: Sequence[LayerShape],
    vocabulary: int,
    positions: int,
) -> Lowered:
    """Lowers a decoder's step to a kernel program.

    Args:
        graph_module: the step. Its placeholders are `inputs`, then key and value (batch, heads,
            past, size) of each layer. Its outputs are the logits (batch, kept, vocabulary), then
            the extended keys and values. It does not write in place.
        inputs: "input_ids", "attention_mask", optionally "position_ids", "logits_to_keep".
        layers: the cached values of each layer.
        vocabulary: exclusive upper bound of token ids.
        positions: maximum length of a sequence.

    Raises:
        LoweringError: [not-row-wise] if a call, which it names, has no kernel or mixes rows.
    """
    selection = select(graph_module, inputs, layers, positions=positions)
    return finish(
        selection.draft,
        selection.tables,
        selection.sources,
        layers=layers,
        logits=selection.logits,
        vocabulary=vocabulary,
        positions=positions,
    )


def finish(
    draft: Draft,
    tables: dict[str, torch.Tensor],
    sources: Mapping[str, torch.Tensor],
    *,
    layers: Sequence[LayerShape],
    logits: Part,
    vocabulary: int,
    positions: int,
) -> Lowered:
    """Fuses the draft of a decoder's step, and places its values in memory.

    Args:
        draft: the step; changed in place.
        tables: computed weights by name; orders are added.
        sources: the model's parameters by the names in recipes.
        layers: as in KernelProgram.
        logits: columns of the logits.
        vocabulary: exclusive upper bound of token ids.
        positions: exclusive upper bound of positions.

    Raises:
        LoweringError: [not-row-wise] for columns in an order that weights cannot have.
    """
    draft.logits = logits
    draft.results = {logits.value}
    keep_early(draft)
    fuse(draft, tables)
    buffers, widths = place(draft, draft.logits)
    program = as_program(
        draft,
        buffers,
        widths,
        layers=layers,
        logits=draft.logits,
        vocabulary=vocabulary,
        positions=positions,
    )
    named = {
        name
        for recipe in program.weights.values()
        for name in (*recipe.sources, *([recipe.order] if recipe.order else []))
    }
    return Lowered(
        program,
        {name: table for name, table in tables.items() if name in named},
        {name: source for name, source in sources.items() if name in named},
    )


def as_program(
    draft: Draft,
    buffers: Sequence[int],
    widths: Sequence[int],
    *,
    layers: Sequence[LayerShape],
    logits: Part | None,
    vocabulary: int = 0,
    positions: int | None = None,
) -> KernelProgram:
    """Returns the program of a fused draft, given the buffer of each value and its width.

    `logits` are columns or None; `vocabulary` and `positions` are exclusive upper bounds.
    """

    def columns(part: Part) -> Columns:
        return Columns(buffers[part.value], part.start, part.width)

    used: set[str] = set()
    made = [
        (line.module, instruction)
        for line in draft.lines
        for instruction in _instructions(draft, line, columns, used)
    ]
    return KernelProgram(
        instructions=tuple(instruction for _, instruction in made),
        widths=tuple(widths),
        weights={name: recipe for name, recipe in draft.weights.items() if name in used},
        layers=tuple(layers),
        logits=None if logits is None else columns(logits),
        vocabulary=vocabulary,
        positions=positions,
        modules=tuple(module for module, _ in made),
    )


def _instructions(
    draft: Draft, line: Line, columns: Callable[[Part], Columns], used: set[str]
) -> list[Instruction]:
    """Returns the instructions of a line; adds the weights that they name to `used`."""
    if line.kind != "join":
        return [_instruction(draft, line, columns, used)]
    copies: list[Instruction] = []
    start = 0
    for part in line.reads.values():
        out = columns(Part(line.out, start, part.width))
        copies.append(Combine(out=out, left=columns(part)))
        start += part.width
    return copies


def _instruction(
    draft: Draft, line: Line, columns: Callable[[Part], Columns], used: set[str]
) -> Instruction:
    """Returns the instruction of a line; adds the weights that it names to `used`."""
    fields = dict(line.fields)
    reads: dict[str, Any] = {name: columns(part) for name, part in line.reads.items()}
    out: Any = None if line.out < 0 else columns(draft.whole(line.out))

    def weight(name: str | None) -> str | None:
        if name is not None:
            used.add(name)
        return name

    def norm(options: NormOptions) -> NormOptions:
        weight(options.weight)
        weight(options.bias)
        return options

    if line.kind == "embed":
        weight(fields["table"])
        return Embed(out=out, **fields)
    if line.kind == "norm":
        return Norm(input=reads["input"], out=out, options=norm(fields["options"]))
    if line.kind == "linear":
        if "norm" in fields:
            fields["norm"] = norm(fields["norm"])
        weight(fields["weight"])
        weight(fields["bias"])
        return Linear(out=out, **reads, **fields)
    if line.kind == "rotate":
        for name in ("own", "other", "partner"):
            weight(fields[name])
        return Rotate(values=reads["input"], **fields)
    if line.kind == "append":
        return Append(**reads, **fields)
    if line.kind == "attend":
        weight(fields["sinks"])
        weight(fields["slopes"])
        return Attend(out=out, **reads, **fields)
    if line.kind == "experts":
        used.update(*(fields[name] or () for name in _BY_EXPERT))
        return Experts(out=out, **reads, **fields)
    if line.kind == "combine":
        right = weight(fields.pop("vector", None)) or reads.get("right")
        return Combine(out=out, left=reads["left"], right=right, **fields)
    return _copying(line, reads, out)


def _copying(line: Line, reads: Mapping[str, Columns], out: Any) -> Instruction:
    if line.kind == "load":
        return Load(out=out, **line.fields)
    if line.kind == "store":
        return Store(input=reads["input"], **line.fields)
    assert line.kind == "keep"
    return Keep(input=reads["input"], out=out)

"""Fuses instructions for one kernel: fewer passes over rows, and fewer barriers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from npu_compiler.kernel_programs.draft import Draft, Line, Part
from npu_compiler.kernel_programs.evaluation import unordered
from npu_ops.kernel_programs.program import Recipe
from npu_ops.kernel_programs.weights import BLOCK_OUTPUTS

__all__ = ["fuse"]

# Each run becomes a separate instruction.
_MOST_RUNS = 128


def fuse(draft: Draft, tables: dict[str, torch.Tensor]) -> None:
    """Fuses a draft in place; computed weights with orders are added to the tables.

    Raises [not-row-wise] for columns in an order that weights cannot have.
    """
    _until_settled(draft, _add_bias)
    _order_outputs(draft, tables)
    _rotate_in_place(draft)
    _until_settled(draft, _fold_activations)
    _until_settled(draft, _gate)
    _until_settled(draft, _follow)
    _until_settled(draft, _add_residual)
    _join_products(draft)
    _normalize_inputs(draft)


def _until_settled(draft: Draft, step: Callable[[Draft], bool]) -> None:
    while step(draft):
        pass


def _sole_reader(draft: Draft, value: int) -> Line | None:
    readers = draft.readers(value)
    return readers[0] if len(readers) == 1 and value not in draft.results else None


def _is_whole(draft: Draft, part: Part) -> bool:
    return part == draft.whole(part.value)


def _written_by(draft: Draft, part: Part, kind: str) -> Line | None:
    """Returns the instruction of a kind that writes exactly these columns, or None."""
    if not _is_whole(draft, part):
        return None
    line = draft.writer(part.value)
    return line if line.kind == kind else None


def _add_bias(draft: Draft) -> bool:
    """Fuses the addition of a vector into the product before it."""
    for line in draft.lines:
        vector = line.fields.get("vector")
        if line.kind != "combine" or vector is None or line.fields["op"] != "add":
            continue
        writer = _written_by(draft, line.reads["left"], "linear")
        if writer is None or writer.fields["bias"] is not None or not _is_plain_product(writer):
            continue
        if _sole_reader(draft, writer.out) is line:
            writer.fields["bias"] = vector
            writer.out = line.out
            draft.lines.remove(line)
            return True
    return False


def _order_outputs(draft: Draft, tables: dict[str, torch.Tensor]) -> None:
    """Reorders outputs of products to the order of reads, or copies columns.

    Some models interleave queries, keys and values by head, or repeat heads.
    """
    for value in {line.reads["input"].value for line in draft.lines if line.kind == "select"}:
        writer = _with_activation(draft, draft.writer(value))
        readers = draft.readers(value)
        if writer.kind == "linear" and all(reader.kind == "select" for reader in readers):
            _order_product(draft, tables, writer, readers)
        else:
            for line in readers:
                if line.kind == "select":
                    _copy_columns(line)


def _with_activation(draft: Draft, line: Line) -> Line:
    """Fuses an elementwise line into the product before it; returns the product."""
    if line.kind != "combine" or len(line.reads) != 1 or "vector" in line.fields:
        return line
    part = line.reads["left"]
    writer = _written_by(draft, part, "linear")
    is_free = writer is not None and _is_plain_product(writer)
    if writer is None or not is_free or _sole_reader(draft, part.value) is not line:
        return line
    for name in ("activation", "factor"):
        if name in line.fields:
            writer.fields[name] = line.fields[name]
    writer.out = line.out
    draft.lines.remove(line)
    return writer


def _order_product(
    draft: Draft, tables: dict[str, torch.Tensor], writer: Line, readers: list[Line]
) -> None:
    """Reorders a product's outputs to the columns of its readers, one reader after the other."""
    order = [column for reader in readers for column in reader.fields["columns"]]
    name = f"order.{len(tables)}"
    tables[name] = torch.tensor(order)
    draft.weights[name] = Recipe(sources=(name,), kind="table")
    for field in ("weight", "bias"):
        known = writer.fields[field]
        if known is not None:
            recipe = replace(draft.weights[known], order=name)
            writer.fields[field] = draft.weight(recipe)
    value, start = draft.value(len(order)), 0
    writer.out = value
    for reader in readers:
        width = draft.widths[reader.out]
        draft.lines.remove(reader)
        draft.redirect(reader.out, Part(value, start, width))
        start += width


def _copy_columns(line: Line) -> None:
    """Replaces columns in another order by copies of runs of columns."""
    value, columns = line.reads["input"].value, line.fields.pop("columns")
    starts = [0] + [at for at in range(1, len(columns)) if columns[at] != columns[at - 1] + 1]
    if len(starts) > _MOST_RUNS:
        raise unordered(line.module)
    line.kind = "join"
    line.reads = {
        str(number): Part(value, columns[first], after - first)
        for number, (first, after) in enumerate(
            zip(starts, [*starts[1:], len(columns)], strict=True)
        )
    }


def _rotate_in_place(draft: Draft) -> None:
    for line in [line for line in draft.lines if line.kind == "rotate"]:
        part = line.reads["input"]
        others = [
            one
            for reader in draft.readers(part.value)
            if reader is not line
            for one in reader.reads.values()
            if one.value == part.value
            and one.start < part.start + part.width
            and part.start < one.start + one.width
        ]
        if others or part.value in draft.results:
            copy = draft.value(part.width)
            at = draft.lines.index(line)
            fields = {"op": "copy"}
            draft.lines.insert(at, Line("combine", copy, {"left": part}, fields, line.module))
            part = draft.whole(copy)
        draft.redirect(line.out, part)
        line.reads = {"input": part}
        line.out = -1


def _fold_activations(draft: Draft) -> bool:
    """Fuses an activation of one operand into a sum or product."""
    for line in draft.lines:
        if line.kind != "combine" or line.fields.get("vector") is not None:
            continue
        sides = [("left", "right"), ("right", "left")] if "right" in line.reads else []
        for side, other in sides:
            part = line.reads[side]
            inner = _written_by(draft, part, "combine")
            is_plain = line.activation is None and line.fields.get("factor", 1.0) == 1.0
            if inner is None or not is_plain or len(inner.reads) != 1 or "vector" in inner.fields:
                continue
            if _sole_reader(draft, part.value) is not line or line.reads[other].value == part.value:
                continue
            line.reads = {"left": inner.reads["left"], "right": line.reads[other]}
            for name in ("activation", "factor"):
                if name in inner.fields:
                    line.fields[name] = inner.fields[name]
            draft.lines.remove(inner)
            return True
    return False


def _gate(draft: Draft) -> bool:
    """Fuses activation(gate) * up into one product with both outputs."""
    for line in draft.lines:
        is_product = line.kind == "combine" and line.fields.get("op") == "mul"
        if not is_product or "right" not in line.reads or line.fields.get("factor", 1.0) != 1.0:
            continue
        for first, second in (("left", "right"), ("right", "left")):
            if first == "right" and line.activation is not None:
                continue  # the activation applies to the left operand
            gate, up = line.reads[first], line.reads[second]
            found = _gated_weight(draft, line, gate, up)
            if found is None:
                continue
            writers, weight, bias = found
            made = Line(
                "linear",
                line.out,
                {"input": writers[0].reads["input"]},
                {"weight": weight, "bias": bias, "gated": True, "activation": line.activation},
                line.module,
            )
            draft.lines[draft.lines.index(line)] = made
            for writer in writers:
                draft.lines.remove(writer)
            return True
    return False


def _gated_weight(
    draft: Draft, line: Line, gate: Part, up: Part
) -> tuple[list[Line], str, str | None] | None:
    """Returns the products of gate and up, and their joined weight and bias."""
    if gate.width != up.width or gate.width % BLOCK_OUTPUTS:
        return None
    if gate.value == up.value:
        whole = draft.whole(gate.value)
        writer = draft.writer(gate.value)
        is_halved = (gate.start, up.start) == (0, gate.width) and whole.width == 2 * gate.width
        if writer.kind != "linear" or not is_halved or not _is_plain_product(writer):
            return None
        if _sole_reader(draft, gate.value) is not line:
            return None
        writers = [writer]
    else:
        one, other = _written_by(draft, gate, "linear"), _written_by(draft, up, "linear")
        if one is None or other is None or one.reads != other.reads:
            return None
        if not (_is_plain_product(one) and _is_plain_product(other)):
            return None
        if any(_sole_reader(draft, part.value) is not line for part in (gate, up)):
            return None
        writers = [one, other]
    joined = _joined_weights(draft, writers, interleaved=True)
    return None if joined is None else (writers, *joined)


def _is_plain_product(line: Line) -> bool:
    known = {"weight", "bias"}
    return all(
        value in (None, False, 1.0) for name, value in line.fields.items() if name not in known
    )


def _joined_weights(
    draft: Draft, writers: list[Line], *, interleaved: bool
) -> tuple[str, str | None] | None:
    """Joins weights and biases of several products; None if they are incompatible."""
    recipes = [draft.weights[writer.fields["weight"]] for writer in writers]
    biases = [writer.fields["bias"] for writer in writers]
    weight = _joined(recipes, interleaved=interleaved)
    if weight is None or (any(biases) and not all(biases)):
        return None
    bias = None
    if all(biases):
        vector = _joined([draft.weights[name] for name in biases], interleaved=interleaved)
        assert vector is not None
        bias = draft.weight(vector)
    return draft.weight(weight), bias


def _joined(recipes: list[Recipe], *, interleaved: bool) -> Recipe | None:
    """Returns a recipe that concatenates the outputs of several."""
    first = recipes[0]
    alike = all(
        (one.kind, one.transposed, one.keeps_precision, one.index, one.order, one.added)
        == (first.kind, first.transposed, first.keeps_precision, None, None, 0.0)
        and not one.interleaved
        for one in recipes
    )
    if not alike:
        return None
    sources = tuple(source for one in recipes for source in one.sources)
    return replace(first, sources=sources, interleaved=interleaved)


def _follow(draft: Draft) -> bool:
    """Fuses an activation or a factor into the product or combination before it."""
    for line in draft.lines:
        if line.kind != "combine" or len(line.reads) != 1 or "vector" in line.fields:
            continue
        part = line.reads["left"]
        if not _is_whole(draft, part) or _sole_reader(draft, part.value) is not line:
            continue
        writer = draft.writer(part.value)
        if writer.kind not in ("linear", "combine") or "right" in writer.reads:
            continue
        if "vector" in writer.fields or writer.fields.get("gated"):
            continue
        if line.activation is not None:
            is_free = writer.activation is None and writer.fields.get("factor", 1.0) == 1.0
            if not is_free:
                continue
            writer.fields["activation"] = line.activation
        writer.fields["factor"] = writer.fields.get("factor", 1.0) * line.fields.get("factor", 1.0)
        writer.out = line.out
        draft.lines.remove(line)
        return True
    return False


def _add_residual(draft: Draft) -> bool:
    """Fuses the addition of a residual into a product."""
    for line in draft.lines:
        is_sum = line.kind == "combine" and line.fields.get("op") == "add"
        if not is_sum or "right" not in line.reads or line.activation is not None:
            continue
        at = draft.lines.index(line)
        candidates = []
        for side, other in (("left", "right"), ("right", "left")):
            factor = line.fields.get("factor", 1.0)
            if factor != 1.0 and side == "right":
                continue
            writer = _written_by(draft, line.reads[side], "linear")
            if writer is None and factor == 1.0:
                writer = _written_by(draft, line.reads[side], "experts")
            if writer is None or "residual" in writer.reads:
                continue
            if _sole_reader(draft, writer.out) is not line:
                continue
            residual = line.reads[other]
            before = draft.lines.index(writer)
            if any(one.out == residual.value for one in draft.lines[:before]):
                candidates.append((before, writer, residual, factor))
        if not candidates:
            continue
        _, writer, residual, factor = max(candidates, key=lambda one: one[0])
        writer.reads["residual"] = residual
        if writer.kind == "linear":
            writer.fields["factor"] = writer.fields.get("factor", 1.0) * factor
        writer.out = line.out
        del draft.lines[at]
        return True
    return False


def _join_products(draft: Draft) -> None:
    """Joins products of the same rows, such as queries, keys and values, into one."""
    groups: dict[Part, list[Line]] = {}
    for line in draft.lines:
        is_apart = draft.widths[line.out] % BLOCK_OUTPUTS if line.kind == "linear" else True
        if not is_apart and _is_plain_product(line) and len(line.reads) == 1:
            groups.setdefault(line.reads["input"], []).append(line)
    for lines in groups.values():
        if len(lines) < 2 or any(line.out in draft.results for line in lines):
            continue
        if draft.weights[lines[0].fields["weight"]].keeps_precision:
            continue
        joined = _joined_weights(draft, lines, interleaved=False)
        if joined is None:
            continue
        out = draft.value(sum(draft.widths[line.out] for line in lines))
        fields = dict(zip(("weight", "bias"), joined, strict=True))
        made = Line("linear", out, dict(lines[0].reads), fields, lines[0].module)
        draft.lines[draft.lines.index(lines[0])] = made
        start = 0
        for line in lines:
            if line in draft.lines:
                draft.lines.remove(line)
            width = draft.widths[line.out]
            draft.redirect(line.out, Part(out, start, width))
            start += width


def _normalize_inputs(draft: Draft) -> None:
    """Fuses a normalization into the products that read it, without other readers."""
    for line in [line for line in draft.lines if line.kind == "norm"]:
        options = line.fields["options"]
        readers = draft.readers(line.out)
        is_input = all(
            reader.kind == "linear"
            and reader.reads["input"] == draft.whole(line.out)
            and reader.reads.get("residual") != draft.whole(line.out)
            for reader in readers
        )
        if not readers or not is_input or options.parts != 1 or line.out in draft.results:
            continue
        for reader in readers:
            reader.fields["norm"] = options
            reader.reads["input"] = line.reads["input"]
        draft.lines.remove(line)

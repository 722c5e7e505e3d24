"""Conditions that the NPU compiler's source has on single operations, beside its layers' operands.

They are the rows of "conditions" in npu_rules.json, each of one of a few forms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from npu_compiler.npu_rules.source_rules import SourceRules

__all__ = ["condition_findings", "groups_of_sizes"]


def condition_findings(node: Any, rules: SourceRules) -> Iterator[tuple[str, str, str]]:
    """Yields the rule, what is in the way, and where it was read, for each condition that fails.

    Args:
        node: of sizes that are numbers.
        rules: with the conditions.
    """
    info = node.get_type_info()
    kind, opset = str(info.name), str(info.version_id)
    for row in rules.conditions(kind, opset):
        found = _failure(node, row)
        if found is not None:
            source = row.get("source") or rules.place("conditions", row["line"], row["file"])
            yield *found, source


def groups_of_sizes(left: Sequence[int], right: Sequence[int]) -> int:
    """How many dimensions the compiler makes of two shapes that meet.

    Neighbours become one where both shapes have the same sizes there, or where the one of fewer
    elements has ones. Of two such runs the one that begins first is taken, not the longer one.
    """
    rank = max(len(left), len(right))
    shapes = [[1] * (rank - len(shape)) + list(shape) for shape in (left, right)]
    full, plane = shapes if math.prod(left) > math.prod(right) else reversed(shapes)
    ones = _runs([size == 1 for size in plane])
    same = _runs([old == new for old, new in zip(full, plane, strict=True)])
    count, place = 0, 0
    while place < rank:
        first = min(filter(None, (ones, same)), key=lambda runs: runs[0][0], default=None)
        if first is None or place < first[0][0]:
            count, place = count + 1, place + 1
            continue
        _, stop = first.pop(0)
        count, place = (count + 1, stop) if stop > place else (count, place + 1)
    return count


def _runs(kinds: Sequence[bool]) -> list[tuple[int, int]]:
    """Where two or more neighbours are of a kind, each from its first to behind its last."""
    edges = [place for place in range(1, len(kinds)) if kinds[place] != kinds[place - 1]]
    parts = zip([0, *edges], [*edges, len(kinds)], strict=True)
    return [(start, stop) for start, stop in parts if kinds[start] and stop - start > 1]


def _failure(node: Any, row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The rule that a row breaks, with the figures; None where it holds."""
    if "most_dimensions" in row:
        return _of_dimensions(node, row["most_dimensions"])
    if "most_groups" in row:
        return _of_groups(node, row["most_groups"])
    if "inputs" in row:
        wanted, count = row["inputs"], node.get_input_size()
        detail = f"it has {_either(wanted)} inputs; got {count}."
        return None if count in wanted else ("attributes", detail)
    if "attribute" in row:
        name, given = row["attribute"], _plain(node.get_attributes()[row["attribute"]])
        detail = f"{name} is {_either(row['values'])}; got {given}."
        return None if given in row["values"] else ("attributes", detail)
    index = row["input"]
    return _of_input(node.input_value(index), row) if index < node.get_input_size() else None


def _of_input(port: Any, row: Mapping[str, Any]) -> tuple[str, str] | None:
    name, maker = f"input {row['input']}", port.get_node()
    if "ranks" in row:
        rank = len(port.get_shape())
        detail = f"{name} has {_either(row['ranks'])} dimensions; got {rank}."
        return None if rank in row["ranks"] else ("operand ranks", detail)
    if "types" in row:
        kind = port.get_element_type().get_type_name()
        detail = f"{name} is {_either(row['types'])}; got {kind}."
        return None if kind in row["types"] else ("operand types", detail)
    if maker.get_type_name() != "Constant":
        detail = f"{name} is a constant; got the result of {maker.get_friendly_name()}."
        return ("constant inputs", detail) if "constant" in row else None
    if "alike" in row and np.unique(maker.get_data()).size > 1:
        return "constant inputs", f"the numbers of {name} are alike; got several."
    return None


def _of_dimensions(node: Any, most: int) -> tuple[str, str] | None:
    shapes = [port.get_partial_shape() for port in [*node.input_values(), *node.outputs()]]
    rank = max((len(shape) for shape in shapes if shape.rank.is_static), default=0)
    detail = f"a tensor has {most} dimensions at most; got {rank}."
    return ("operand ranks", detail) if rank > most else None


def _of_groups(node: Any, most: int) -> tuple[str, str] | None:
    left, right = (list(port.get_shape()) for port in node.input_values())
    if max(len(left), len(right)) <= most:
        return None
    count = groups_of_sizes(left, right)
    detail = f"{left} and {right} meet in {most} groups of dimensions at most; got {count}."
    return ("operand sizes", detail) if count > most else None


def _either(values: Sequence[Any]) -> str:
    return " or ".join(str(value) for value in values)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value

"""Rules from the compiler's sources, and their conditions on a node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "GENERATIONS",
    "NEWEST",
    "OLDEST",
    "SourceRules",
    "condition_findings",
    "is_empty",
    "mask_repeats",
    "scaled_pieces",
    "source_rules",
]

# tools/npu_rules.py generates npu_rules.json. Each row of corrections.json has its first OpenVINO
# release, and the release in which it was seen, if later: older compilers are assumed to refuse
# what the newest refuses.

# NPU 3720 is in Meteor Lake, NPU 4000 in Lunar Lake.
GENERATIONS = ("3720", "4000")
# Releases of OpenVINO whose compilers were compared with the rules. Operations that the newest
# accepts are accepted; those that the oldest refuses are rewritten, since drivers have older
# compilers.
OLDEST, NEWEST = "2026.0.0", "2026.4.1"


@dataclass(frozen=True)
class SourceRules:
    """The rules' data, with accessors for checks."""

    content: dict[str, Any]

    def operation(self, kind: str, opset: str) -> dict[str, Any] | None:
        """Returns the importer's entry of an operation, or None if unsupported."""
        return self._found("operations", kind, opset)

    def rewriting(self, kind: str, opset: str) -> dict[str, Any] | None:
        """Returns the pass that replaces an operation before the import, or None."""
        return self._found("rewritten", kind, opset)

    def opsets(self, kind: str) -> tuple[str, ...]:
        """Returns the supported versions of an operation."""
        rows = [*self.content["operations"], *self.content["rewritten"]]
        return tuple(sorted({row["opset"] for row in rows if _is(row, kind)}))

    def layer(self, name: str) -> dict[str, Any]:
        """Returns a layer's operands and which of them are constants; empty without a layer."""
        found: dict[str, Any] = self.content["layers"].get(name, {"operands": [], "constants": []})
        return found

    def conditions(self, kind: str, opset: str) -> list[dict[str, Any]]:
        """Returns the conditions on an operation, including those on all operations."""
        return [
            row
            for row in self.content["conditions"]
            if (not row["operations"] or kind in row["operations"]) and row["opset"] in ("", opset)
        ]

    def skipped_test(self, kind: str, generation: str) -> dict[str, Any] | None:
        """Returns the pattern that skips all tests of an operation on a generation."""
        for row in self.content["skipped_tests"]:
            if row["operation"] == kind and generation in row["generations"]:
                found: dict[str, Any] = row
                return found
        return None

    def place(self, table: str, line: int, file: str | None = None) -> str:
        """Returns the source of a table's rule, "file:line at commit"."""
        commit = self.content["commit"][:12]
        return f"{file or self.content['files'][table]}:{line} at {commit}"

    def _found(self, table: str, kind: str, opset: str) -> dict[str, Any] | None:
        for row in self.content[table]:
            if _is(row, kind) and row["opset"] == opset:
                found: dict[str, Any] = row
                return found
        return None


@cache
def source_rules(release: str = NEWEST) -> SourceRules:
    """Returns the rules for the compiler of a release, "" for the source of 2024; cached."""
    folder = Path(__file__).parent
    content: dict[str, Any] = json.loads((folder / "npu_rules.json").read_text())
    for row in json.loads((folder / "corrections.json").read_text())["rows"]:
        if _order(row["release"]) <= _order(release):
            _correct(content, row)
    return SourceRules(content)


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part)


def _correct(content: dict[str, Any], row: dict[str, Any]) -> None:
    source = f"seen in the compiler of OpenVINO {row.get('seen', row['release'])}"
    for name in row.get("layers", ()):
        layer = content["layers"][name]
        for operand in layer["operands"]:
            if operand["types"] is not None:
                operand["types"] = sorted({*operand["types"], *row.get("types", ())})
        variable = row.get("variable", ())
        layer["constants"] = [one for one in layer["constants"] if one["operand"] not in variable]
    for one in row.get("operations", ()):
        content["operations"].append({"layer": "", "inputs": {}, **one})
    if "drop" in row:
        dropped = row["drop"].items()
        content["conditions"] = [one for one in content["conditions"] if not dropped <= one.items()]
    for one in row.get("conditions", ()):
        content["conditions"].append({**one, "source": source})


def _is(row: dict[str, Any], kind: str) -> bool:
    return bool(row["type"] == kind)


# Conditions are rows in npu_rules.json and corrections.json, each of one of a few kinds.

_CUTS = ("Slice", "Split", "StridedSlice", "VariadicSplit")


def condition_findings(node: Any, rules: SourceRules) -> Iterator[tuple[str, str, str]]:
    """Yields rule, obstacle and source of each violated condition."""
    info = node.get_type_info()
    kind, opset = str(info.name), str(info.version_id)
    for row in rules.conditions(kind, opset):
        found = _failure(node, row)
        if found is not None:
            source = row.get("source") or rules.place("conditions", row["line"], row["file"])
            yield *found, source


def is_empty(port: Any) -> bool:
    """Whether a tensor has no elements."""
    shape = port.get_partial_shape()
    return shape.rank.is_static and any(size.is_static and size == 0 for size in shape)


def scaled_pieces(node: Any) -> list[tuple[Any, float]] | None:
    """Returns the pieces of a batch's concatenation, each with its factor.

    None unless all are pieces of one rank-4 tensor with different factors, as when the halves of a
    vector are swapped and one is negated.
    """
    shape = node.get_output_partial_shape(0)
    if shape.is_dynamic or len(shape) != 4 or shape[0] == 1:
        return None
    pieces = [_unscaled(port) for port in node.input_values()]
    whole = {_cut_from(port) for port, _ in pieces}
    if len(whole) > 1 or None in whole or len({factor for _, factor in pieces}) == 1:
        return None
    return pieces


def mask_repeats(attention: Any) -> list[int] | None:
    """Returns the repeats of a batch's mask in its four dimensions.

    None unless there is one mask per head for all sequences, or one per sequence with repeated
    heads of keys and values. A single mask for all is supported.
    """
    shapes = [port.get_partial_shape() for port in attention.input_values()]
    if len(shapes) < 4 or any(shape.is_dynamic for shape in shapes) or len(shapes[0]) != 4:
        return None
    wanted = [int(size) for size in shapes[0].to_shape()[:2]]
    given = [1, 1, 1, 1, *(int(size) for size in shapes[3].to_shape())][-4:-2]
    if wanted[0] == 1 or given in (wanted, [1, 1]):
        return None
    if given[1] == 1 and not any(_is_repeated(attention.input_value(index)) for index in (1, 2)):
        return None
    return [new // old for old, new in zip(given, wanted, strict=True)] + [1, 1]


def _is_repeated(heads: Any) -> bool:
    maker = heads.get_node()
    if maker.get_type_name() == "Reshape":
        maker = maker.input_value(0).get_node()
    return maker.get_type_name() in ("Broadcast", "Tile")


def _unscaled(port: Any) -> tuple[Any, float]:
    maker = port.get_node()
    if maker.get_type_name() == "Negative":
        return maker.input_value(0), -1.0
    if maker.get_type_name() == "Multiply":
        for index, other in enumerate(maker.input_values()):
            number = other.get_node()
            if number.get_type_name() == "Constant" and number.get_data().size == 1:
                return maker.input_value(1 - index), float(number.get_data().reshape(-1)[0])
    return port, 1.0


def _cut_from(port: Any) -> tuple[str, int] | None:
    maker = port.get_node()
    if maker.get_type_name() not in _CUTS:
        return None
    source = maker.input_value(0)
    return str(source.get_node().get_name()), int(source.get_index())


def _failure(node: Any, row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the rule of a violated row, with the figures, or None."""
    if "most_dimensions" in row:
        return _of_dimensions(node, row["most_dimensions"])
    if "refused" in row:
        return "operation types", row["refused"]
    if "kernel_fits" in row:
        return _of_kernel(node)
    if "elements" in row:
        return _without_elements(node)
    if "alike_pieces" in row:
        detail = "pieces of one batch tensor must have equal factors."
        return ("operand sizes", detail) if scaled_pieces(node) else None
    if "whole_mask" in row:
        detail = "the mask of a batch must be one for all, or one per sequence and head."
        return ("operand sizes", detail) if mask_repeats(node) else None
    if "inputs" in row:
        wanted, count = row["inputs"], node.get_input_size()
        detail = f"it must have {_either(wanted)} inputs, got {count}."
        return None if count in wanted else ("attributes", detail)
    if "attribute" in row:
        name, given = row["attribute"], _plain(node.get_attributes()[row["attribute"]])
        detail = f"{name} must be {_either(row['values'])}, got {given}."
        return None if given in row["values"] else ("attributes", detail)
    index = row["input"]
    return _of_input(node.input_value(index), row) if index < node.get_input_size() else None


def _of_input(port: Any, row: Mapping[str, Any]) -> tuple[str, str] | None:
    name, maker = f"input {row['input']}", port.get_node()
    if "ranks" in row:
        rank = len(port.get_shape())
        detail = f"{name} must have {_either(row['ranks'])} dimensions, got {rank}."
        return None if rank in row["ranks"] else ("operand ranks", detail)
    if "types" in row:
        kind = port.get_element_type().get_type_name()
        detail = f"{name} must be {_either(row['types'])}, got {kind}."
        return None if kind in row["types"] else ("operand types", detail)
    if maker.get_type_name() != "Constant":
        detail = f"{name} must be a constant, got the result of {maker.get_friendly_name()}."
        return ("constant inputs", detail) if "constant" in row else None
    if "alike" in row and np.unique(maker.get_data()).size > 1:
        return "constant inputs", f"the numbers of {name} must be equal, got several."
    return None


def _of_dimensions(node: Any, most: int) -> tuple[str, str] | None:
    shapes = [port.get_partial_shape() for port in [*node.input_values(), *node.outputs()]]
    rank = max((len(shape) for shape in shapes if shape.rank.is_static), default=0)
    detail = f"a tensor must have at most {most} dimensions, got {rank}."
    return ("operand ranks", detail) if rank > most else None


def _of_kernel(node: Any) -> tuple[str, str] | None:
    attributes = node.get_attributes()
    kernel, sizes = list(attributes["kernel"]), list(node.input_value(0).get_shape())[2:]
    fits = all(width <= size for width, size in zip(kernel, sizes, strict=True))
    detail = f"the kernel of a mean without padding must fit {sizes}, got {kernel}."
    return None if fits or not attributes["exclude-pad"] else ("attributes", detail)


def _without_elements(node: Any) -> tuple[str, str] | None:
    if node.get_type_name() == "Constant":
        return None
    given = [port for port in node.input_values() if port.get_node().get_type_name() != "Constant"]
    shapes = [port.get_partial_shape() for port in [*given, *node.outputs()] if is_empty(port)]
    detail = f"a tensor must have elements, got the shape {shapes[0] if shapes else ''}."
    return ("operand sizes", detail) if shapes else None


def _either(values: Sequence[Any]) -> str:
    return " or ".join(str(value) for value in values)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value

"""Reads configurations of operations from the pass tests of the NPU's compiler.

Such a test is a text of the compiler's operations (`tests/lit`). Only operations of the importer
are read, with element types, shapes, constants and attributes. Results of later passes are left
out: layouts, quantized types, fused operations.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["configurations"]

# Attributes that only later passes set.
_LATER = frozenset({
    "clamp", "input_channels", "input_padding", "outStride", "output_channels",
    "output_shape_attr", "padSize", "post_op", "static_offsets", "static_scale",
})  # fmt: skip
# An attribute set by the importer for some layers, and by a later pass for others.
_OUTPUT_PADDING = ("ConvolutionBackpropData", "GroupConvolutionBackpropData")
# MLIR's attribute for the optional operands that are present.
_SEGMENTS = re.compile(r"operand_?segment_?sizes = array<i32: ([\d, ]*)>", re.IGNORECASE)
_MOST_VALUES = 16
# No configuration has a larger constant, so that its model is quick to build.
_MOST_ELEMENTS = 1 << 22
_OPERATION = re.compile(r"^\s*%[\w:, %#-]+?\s*=\s*IE\.(\w+)\s*\(", re.MULTILINE)
_CONSTANT = re.compile(
    r"^\s*(%[\w-]+)\s*=\s*const\.Declare\s+tensor<([^>]*)>\s*=\s*(?:dense<([^>]*)>)?([^\n]*)",
    re.MULTILINE,
)
_ORDER = re.compile(r"^\s*(#\w+) = affine_map<\([\w, ]*\) -> \(([d\d, ]*)\)>", re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
# Operations that keep the numbers of a constant.
_SAME = frozenset({"CastElemType", "ConvertElemType", "Reshape"})
_TYPES = {
    "f16": "f16", "f32": "f32", "f64": "f64", "bf16": "bf16", "i1": "boolean", "i8": "boolean",
    **{f"si{width}": f"i{width}" for width in (4, 8, 16, 32, 64)},
    **{f"ui{width}": f"u{width}" for width in (4, 8, 16, 32, 64)},
}  # fmt: skip


def configurations(texts: Iterable[str], layers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the configurations that differ in more than sizes and numbers, the smallest of each.

    Each is {"layer": name, "operands": [...], "attributes": {...}}. An operand is "f16[2, 3]", a
    constant also has its numbers, as in "i64[2] = 0, 1", or "..." if there are many, and a missing
    optional operand is "".

    Args:
        texts: texts of tests.
        layers: layers of the importer: name in the texts -> name of the layer.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        for row in _read(text, layers):
            kind = _kind(row)
            if kind not in found or _size(row) < _size(found[kind]):
                found[kind] = row
    return [
        {
            "layer": row["layer"],
            "operands": [_written(one) for one in row["operands"]],
            "attributes": row["attributes"],
        }
        for _, row in sorted(found.items())
    ]


def _written(operand: dict[str, Any] | None) -> str:
    if operand is None:
        return ""
    text = f"{operand['type']}{operand['shape']}"
    if "constant" not in operand:
        return text
    numbers = operand["constant"]
    return f"{text} = " + ("..." if numbers is None else ", ".join(map(str, numbers)))


def _read(text: str, layers: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    parts = (part for part in text.split("// -----") if "expected-error" not in part)
    lines = (line for part in parts for line in part.splitlines())
    text = "\n".join(line for line in lines if not line.strip().startswith("//"))
    for order in _ORDER.finditer(text):
        places = [int(word) for word in re.findall(r"d(\d+)", order[2])]
        text = re.sub(rf"=\s*{order[1]}\b", f"= {places}", text)
    for function in text.split("func.func"):
        constants = {place[1]: _values(place) for place in _CONSTANT.finditer(function)}
        for head in _OPERATION.finditer(function):
            layer = layers.get(head[1])
            row = _configuration(function[head.end() :], constants) if layer else None
            if row is not None and not (
                "output_padding" in row["attributes"] and layer not in _OUTPUT_PADDING
            ):
                yield {"layer": layer, **row}


def _configuration(text: str, constants: dict[str, list[Any] | None]) -> dict[str, Any] | None:
    """Returns a configuration from the text after an operation's name; None for later passes."""
    names, rest = _until(text, ")")
    rest = rest.lstrip()
    attributes: dict[str, Any] = {}
    segments = None
    if rest.startswith("{"):
        inside, rest = _until(rest[1:], "}")
        segments = _SEGMENTS.search(inside)
        inside = _SEGMENTS.sub("", inside)
        parsed = _attributes(inside)
        if parsed is None or _LATER & parsed.keys():
            return None
        attributes = parsed
    signature = re.match(r"\s*:\s*(tensor<.*?)\s*->\s*\(?\s*(tensor<[^>]*>)", rest, re.DOTALL)
    if signature is None:
        return None
    types = [_tensor(word) for word in re.findall(r"tensor<([^>]*)>", signature[1])]
    operands = [name.strip() for name in names.split(",") if name.strip()]
    if None in types or _tensor(signature[2][7:-1]) is None or len(types) != len(operands):
        return None
    rows: list[dict[str, Any] | None] = []
    for name, kind in zip(operands, types, strict=True):
        row = dict(kind or {})
        if name in constants:
            row["constant"] = constants[name]
            if math.prod(row["shape"]) > _MOST_ELEMENTS:
                return None
        rows.append(row)
    if segments is None:
        return {"operands": rows, "attributes": attributes}
    present = [int(word) for word in segments[1].split(",")]
    if sum(present) != len(rows) or max(present) > 1:
        return None
    remaining = iter(rows)
    return {
        "operands": [next(remaining) if one else None for one in present],
        "attributes": attributes,
    }


def _values(place: re.Match[str]) -> list[Any] | None:
    """Returns the numbers of a constant; None if there are many, or another notation."""
    changes = set(re.findall(r"#const\.(\w+)", place[4] or ""))
    if place[3] is None or changes - _SAME:
        return None
    numbers = [_number(word) for word in _NUMBER.findall(place[3])]
    is_text = place[3].startswith('"') or not numbers
    return None if is_text or len(numbers) > _MOST_VALUES else numbers


def _tensor(text: str) -> dict[str, Any] | None:
    words = text.strip().split("x")
    kind = _TYPES.get(words[-1])
    sizes = words[:-1]
    if kind is None or not all(word.isdecimal() for word in sizes):
        return None
    return {"type": kind, "shape": [int(word) for word in sizes]}


def _attributes(text: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for part in _parts(text):
        name, is_given, value = part.partition("=")
        name = name.strip().strip('"')
        given = _value(value.strip()) if is_given else True
        if given is None:
            return None
        found[name] = given
    return found


def _value(text: str) -> Any:
    """Parses a number, a word, a list, or a table of these; None for values of later passes."""
    text = re.sub(r"\s*:\s*[a-z]+\d+$", "", text)
    if re.fullmatch(_NUMBER, text):
        return _number(text)
    if text in ("true", "false"):
        return text == "true"
    if text in _TYPES:
        return _TYPES[text]
    if text.startswith("["):
        values = [_value(part) for part in _parts(text[1:-1])]
        return None if None in values else values
    word = re.fullmatch(r"(?:#IE\.\w+)?<(.*)>", text, re.DOTALL)
    if word is None:
        return text.strip('"') if text.startswith('"') else None
    return _attributes(word[1]) if "=" in word[1] else word[1].strip()


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _parts(text: str) -> list[str]:
    depth, start, found = 0, 0, []
    for position, letter in enumerate(text):
        is_arrow = letter == ">" and text[position - 1] == "-"
        depth += (letter in "([{<") - (letter in ")]}>" and not is_arrow)
        if letter == "," and depth == 0:
            found.append(text[start:position])
            start = position + 1
    found.append(text[start:])
    return [part.strip() for part in found if part.strip()]


def _until(text: str, end: str) -> tuple[str, str]:
    """Splits at the matching closing bracket."""
    start, depth = {")": "(", "}": "{"}[end], 1
    for position, letter in enumerate(text):
        depth += (letter == start) - (letter == end)
        if depth == 0:
            return text[:position], text[position + 1 :]
    return text, ""


def _size(row: dict[str, Any]) -> int:
    return sum(math.prod(one["shape"]) for one in row["operands"] if one)


def _kind(row: dict[str, Any]) -> str:
    """Returns the properties of a configuration other than sizes and numbers."""
    operands = [
        one and [one["type"], len(one["shape"]), "constant" in one, one.get("constant") is None]
        for one in row["operands"]
    ]
    return json.dumps([row["layer"], operands, _without_numbers(row["attributes"])], sort_keys=True)


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, (str, bool)) else 0

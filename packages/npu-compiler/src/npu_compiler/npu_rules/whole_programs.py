"""What an NPU asks of a program as a whole: sizes that are numbers, element types, no state."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov

from npu_compiler.npu_rules.finding import Finding

__all__ = ["check_whole_program", "varying_operations"]

# Element types that OpenVINO's documentation of the NPU device lists for ports and constants.
_TYPES = frozenset(
    {"f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "i4", "u4",
     "nf4", "boolean"}
)  # fmt: skip


def check_whole_program(model: ov.Model) -> list[Finding]:
    """Returns one finding for each rule; the model stays as it is."""
    return [_shapes(model), _types(model), _state(model)]


def varying_operations(model: ov.Model) -> list[str]:
    """Returns the names of operations whose results vary in size."""
    return [
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if any(output.get_partial_shape().is_dynamic for output in node.outputs())
    ]


def _shapes(model: ov.Model) -> Finding:
    dynamic = varying_operations(model)
    if not dynamic:
        return Finding("static shapes", "accepted", "every dimension is a number")
    step = "Export it without dynamic=, once per size."
    return Finding("static shapes", "refused", f"{_some(dynamic)} vary in size. {step}")


def _types(model: ov.Model) -> Finding:
    others: dict[str, list[str]] = {}
    found = set()
    for node in model.get_ordered_ops():
        for output in node.outputs():
            name = output.get_element_type().get_type_name()
            found.add(name)
            if name not in _TYPES:
                others.setdefault(name, []).append(node.get_friendly_name())
    if not others:
        return Finding("element types", "accepted", ", ".join(sorted(found)))
    detail = "; ".join(f"{name}: {_some(nodes)}" for name, nodes in sorted(others.items()))
    return Finding("element types", "refused", f"{detail}. Compute these in float32.")


def _state(model: ov.Model) -> Finding:
    states = [
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_type_name() in ("ReadValue", "Assign")
    ]
    if not states:
        return Finding("no state", "accepted", "each run depends on its inputs alone")
    return Finding(
        "no state", "refused", f"{_some(states)} keep state. Make it an input and an output."
    )


def _some(names: Sequence[str], limit: int = 3) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")

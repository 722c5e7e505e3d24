"""Programs of bfloat16, which the importer takes for ports and constants, and no layer has."""

from __future__ import annotations

from typing import Any

import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.rewriting import put_in_place

__all__ = ["computes_in_bfloat16", "widen_bfloat16"]

# What the importer takes bfloat16 for.
_TAKEN = ("Parameter", "Constant", "Result", "Convert")


def computes_in_bfloat16(model: ov.Model) -> bool:
    """Whether an operation takes or gives bfloat16."""
    return any(_is_inside(node) for node in model.get_ordered_ops())


def widen_bfloat16(model: ov.Model) -> int:
    """Computes in float32 what was bfloat16, in place; ports and constants keep their type.

    Results differ from bfloat16's by its rounding, which happens once, at the end.

    Returns:
        How many operations took or gave bfloat16.
    """
    nodes = model.get_ordered_ops()
    inside = [node for node in nodes if _is_inside(node)]
    results = [node for node in nodes if node.get_type_name() == "Result" and _gives(node)]
    for node in nodes:
        kind = node.get_type_name()
        if kind in ("Parameter", "Constant") and _gives(node):
            _cast_behind(node.output(0))
        elif kind == "Convert" and _gives(node):
            put_in_place(node, ops.convert(node.input_value(0), ov.Type.f32))
    for node in results:
        source = node.input_value(0)
        names = source.get_names()
        narrow = ops.convert(source, ov.Type.bf16).output(0)
        node.input(0).replace_source_output(narrow)
        narrow.get_tensor().set_names(names)
    model.validate_nodes_and_infer_types()
    return len(inside)


def _is_inside(node: Any) -> bool:
    if node.get_type_name() in _TAKEN:
        return False
    taken = (source.get_element_type() for source in node.input_values())
    return _gives(node) or ov.Type.bf16 in taken


def _gives(node: Any) -> bool:
    return any(output.get_element_type() == ov.Type.bf16 for output in node.outputs())


def _cast_behind(output: ov.Output) -> None:
    """Gives all who read an output its float32, but a port of the program."""
    readers = [
        one for one in output.get_target_inputs() if one.get_node().get_type_name() != "Result"
    ]
    if readers:
        wide = ops.convert(output, ov.Type.f32).output(0)
        for reader in readers:
            reader.replace_source_output(wide)

"""Checks a model's operations, and the whole program, against the compiler's rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
from openvino._offline_transformations import apply_moc_transformations

from npu_compiler.graph.kept_origins import kept_origins
from npu_compiler.npu_rules.before_import import is_replaced, replacement
from npu_compiler.npu_rules.source_rules import (
    NEWEST,
    SourceRules,
    condition_findings,
    source_rules,
)

__all__ = [
    "Finding",
    "check_operations",
    "check_whole_program",
    "node_refusals",
    "varying_operations",
]


@dataclass(frozen=True)
class Finding:
    """The result of one rule.

    Attributes:
        rule: the requirement of an NPU.
        verdict: accepted, refused, or unknown if it cannot be determined.
        detail: the figures, or the obstacle and a fix.
        operation: type and version of the operation that violates the rule; "" for a whole model.
        node: name of the original FX node.
        line: Python line of that node, "file.py:123"; "" if unknown.
        source: file, line and commit of the rule in the compiler's source.
        module: path of the node's torch module; "" if unknown.
        judge: "rules" or, for the verdict of the NPU's own compiler, "compiler".
    """

    rule: str
    verdict: str
    detail: str
    operation: str = ""
    node: str = ""
    line: str = ""
    source: str = ""
    module: str = ""
    judge: str = "rules"


# Element types that OpenVINO's documentation of the NPU device lists for ports and constants.
_TYPES = frozenset(
    {"f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "i4", "u4",
     "nf4", "boolean"}
)  # fmt: skip


def check_whole_program(model: ov.Model) -> list[Finding]:
    """Returns one finding for each rule, without changes to the model."""
    return [_shapes(model), _types(model), _state(model)]


def varying_operations(model: ov.Model) -> list[str]:
    """Returns the names of operations with dynamic result sizes."""
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
    return Finding("static shapes", "refused", f"{_some(dynamic)} have dynamic shapes. {step}")


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
        return Finding("no state", "accepted", "each run depends only on its inputs")
    return Finding(
        "no state", "refused", f"{_some(states)} keep state. Make it an input and an output."
    )


def _some(names: Sequence[str], limit: int = 3) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


_RULES = (
    "operation types",
    "operand types",
    "operand ranks",
    "operand sizes",
    "constant inputs",
    "attributes",
)
# The importer uses other layers for these if their results have dynamic shapes.
_IMPORTED_BY_SIZES = ("Broadcast", "Reshape")
# The number of results depends on the data, which the replacing pass does not read.
_OF_ANY_NUMBER = ("NonMaxSuppression",)
_STEPS = {
    "operation types": "Write it with other operations, or run that part on the host.",
    "operand types": "Cast the operand to one of these.",
    "operand ranks": "Reshape the operand.",
    "operand sizes": "Broadcast the smaller operand first.",
    "attributes": "Write it with other operations, or run that part on the host.",
    "constant inputs": "Make it a constant of the model.",
}


def check_operations(model: ov.Model, *, generation: str, release: str = NEWEST) -> list[Finding]:
    """Checks every operation against the rules, without changes to the model.

    The NPU's compiler runs the common passes first, so they run here too. Operations that its other
    passes replace are checked in their replaced form. Subgraphs of operations are checked too.

    Args:
        model: of any shapes, with known ranks.
        generation: "3720" or "4000".
        release: see npu_compiler.npu_rules.source_rules.source_rules.

    Returns:
        A refusal for each violated rule and operation; one accepted finding for each rule without a
        violation; one unknown finding for each operation whose tests the authors skip.
    """
    origins = kept_origins(model)
    prepared = model.clone()
    apply_moc_transformations(prepared, cf=True)
    rules = source_rules(release)
    found: list[Finding] = []
    nodes = list(_all_operations(prepared))
    for node in nodes:
        found.extend(_node_findings(node, rules, origins, generation))
    broken = {finding.rule for finding in found}
    compiler = f"compiler of OpenVINO {release}" if release else rules.content["date"]
    summary = f"{len(nodes)} operations, NPU {generation}, {compiler}"
    accepted = [Finding(rule, "accepted", summary) for rule in _RULES if rule not in broken]
    return [*accepted, *found]


def node_refusals(node: Any, *, generation: str, release: str = NEWEST) -> list[Finding]:
    """Returns the rules that one operation violates before any pass."""
    found = _node_findings(node, source_rules(release), {}, generation)
    return [finding for finding in found if finding.verdict == "refused"]


def _all_operations(model: ov.Model) -> Iterator[Any]:
    for node in model.get_ordered_ops():
        yield node
        for body in _bodies(node):
            yield from _all_operations(body)


def _bodies(node: Any) -> tuple[ov.Model, ...]:
    kind = node.get_type_name()
    if kind == "If":
        return node.get_then_body(), node.get_else_body()
    return (node.get_function(),) if kind in ("Loop", "TensorIterator") else ()


def _node_findings(
    node: Any, rules: SourceRules, origins: Mapping[str, tuple[str, str]], generation: str
) -> Iterator[Finding]:
    info = node.get_type_info()
    kind, opset = str(info.name), str(info.version_id)

    def finding(rule: str, detail: str, source: str, verdict: str = "refused") -> Finding:
        name = node.get_friendly_name()
        fx_node = name.partition("/")[0]
        operation = f"{kind} ({opset})"
        module, line = origins.get(fx_node, ("", ""))
        where = f"{operation} of {name}" + (f", {line}" if line else "")
        text = f"{where}: {detail}" + (f" {_STEPS[rule]}" if rule in _STEPS else "")
        return Finding(rule, verdict, text, operation, fx_node, line, source, module)

    skipped = rules.skipped_test(kind, generation)
    if skipped is not None:
        yield finding(
            "skipped tests",
            f"the compiler's authors skip its tests on NPU {generation} ({skipped['pattern']}).",
            rules.place("skipped_tests", skipped["line"]),
            "unknown",
        )
    rewriting = rules.rewriting(kind, opset)
    made: list[Any] = [node]
    if rewriting is not None and is_replaced(kind, opset):
        results = [] if kind in _OF_ANY_NUMBER else node.outputs()
        if any(port.get_partial_shape().is_dynamic for port in [*node.inputs(), *results]):
            return  # dynamic shapes are a separate refusal
        replaced = replacement(node)
        if replaced is None and rules.operation(kind, opset) is None:
            detail = (
                f"{rewriting['pass']} does not replace it, and the importer does not accept it."
            )
            yield finding("operation types", detail, rewriting["conditions"])
            return
        made = [node] if replaced is None else replaced
        if kind not in {one.get_type_name() for one in made}:
            for rule, detail, source in condition_findings(node, rules):
                yield finding(rule, detail, source)
    for one in made:
        version = rewriting["into"] if rewriting else None
        for rule, detail, source in _importer_findings(one, rules, version):
            becomes = "" if one is node else f"becomes {one.get_type_name()}, and "
            yield finding(rule, becomes + detail, source)


def _importer_findings(
    node: Any, rules: SourceRules, version: str | None
) -> Iterator[tuple[str, str, str]]:
    """Returns the importer's findings for an operation, or for its replacement."""
    kind, opset = str(node.get_type_info().name), str(node.get_type_info().version_id)
    taken = rules.operation(kind, version or opset)
    if taken is None:
        known = ", ".join(rules.opsets(kind))
        versions = f"it accepts those of {known}" if known else "it accepts none of that type"
        source = f"{rules.content['files']['operations']} at {rules.content['commit'][:12]}"
        yield "operation types", f"the importer does not accept it; {versions}.", source
        return
    ports = [*node.inputs(), *(node.outputs() if kind in _IMPORTED_BY_SIZES else ())]
    if any(port.get_partial_shape().is_dynamic for port in ports):
        return  # dynamic shapes are a separate refusal
    yield from _operand_findings(node, taken, rules)
    yield from condition_findings(node, rules)


def _operand_findings(
    node: Any, taken: Mapping[str, Any], rules: SourceRules
) -> Iterator[tuple[str, str, str]]:
    layer = rules.layer(taken["layer"])
    operands = layer["operands"]
    constants = {row["operand"]: row for row in layer["constants"]}
    for index, given in enumerate(node.inputs()):
        position = taken["inputs"].get(str(index), None if taken["inputs"] else index)
        if position is None or position >= len(operands):
            continue
        operand = operands[position]
        if operand["is_variadic"]:
            continue
        name, port = operand["name"], given.get_source_output()
        kind, types = port.get_element_type().get_type_name(), operand["types"]
        place = rules.place("layers", layer["line"])
        if types is not None and kind not in types:
            yield "operand types", f"{name} must be {', '.join(types)}, got {kind}.", place
        rank, ranks = port.get_partial_shape().rank, operand["ranks"]
        if ranks is not None and rank.is_static and rank.get_length() not in ranks:
            allowed = " or ".join(str(length) for length in ranks)
            detail = f"{name} must have {allowed} dimensions, got {rank.get_length()}."
            yield "operand ranks", detail, place
        asked = constants.get(name)
        if asked is not None and port.get_node().get_type_name() != "Constant":
            source = rules.place("constants", asked["line"], asked["file"])
            maker = port.get_node().get_friendly_name()
            yield (
                "constant inputs",
                f"{name} must be a constant, got the result of {maker}.",
                source,
            )

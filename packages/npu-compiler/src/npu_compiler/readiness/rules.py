"""The rules that a model is checked against, for a module and for an exported folder.

What is read from the source of the NPU's compiler is in npu_compiler.npu_rules.operations. Whether
a model fits the memory, and how fast it is, cannot be found out here, which the report says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov
from torch import nn

from npu_compiler.errors import OptionError
from npu_compiler.exported.manifest import read_manifest
from npu_compiler.npu_rules.finding import Finding
from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.source_rules import GENERATIONS
from npu_compiler.openvino_core import openvino_core
from npu_compiler.readiness.report import Readiness
from npu_runtime.public_calls import public_call

__all__ = ["check", "check_folder", "check_model"]

# Element types that OpenVINO's documentation of the NPU device lists for ports and constants.
_TYPES = frozenset(
    {"f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "i4", "u4",
     "nf4", "boolean"}
)  # fmt: skip
# The plugin computes in half precision where the CPU plugin computes in float32.
_TOLERANCE = 3e-2
_TIMEOUT_S = 600.0


@public_call
def check(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    generation: str = "4000",
) -> Readiness:
    """Says whether a model is what an NPU accepts; no NPU is needed.

    Args:
        model: a torch module.
        example_inputs: positional arguments of a call; their sizes are those that are checked.
        kwargs: arguments by name.
        generation: "3720" (Meteor Lake) or "4000" (Lunar Lake).

    Returns:
        One finding per rule, and one per operation that breaks one. A model that cannot become one
        program is refused by the first.

    Raises:
        OptionError: [option-value] a generation whose rules are not known.
    """
    _check_generation(generation)
    from npu_compiler.errors import ExportError, LoweringError
    from npu_compiler.exported.write import export

    with tempfile.TemporaryDirectory(prefix="npu-check-") as place:
        folder = Path(place) / "model"
        try:
            export(model, example_inputs, folder, kwargs=kwargs)
        except (ExportError, LoweringError) as failure:
            finding = Finding("one program", "refused", str(failure))
            return Readiness(type(model).__name__, (finding,))
        return check_folder(folder, generation=generation)


def check_folder(path: str | os.PathLike[str], *, generation: str = "4000") -> Readiness:
    """Says whether an exported model is what an NPU accepts.

    Args:
        path: a folder that npu_compiler.export made.
        generation: "3720" (Meteor Lake) or "4000" (Lunar Lake).

    Raises:
        ExportError: the folder is not one, or is damaged.
        OptionError: [option-value] a generation whose rules are not known.
    """
    _check_generation(generation)
    folder = Path(path)
    manifest = read_manifest(folder)
    xml = next(folder.glob("*.xml"))
    model = openvino_core().read_model(xml)
    findings = list(check_model(model, name=manifest.name, generation=generation).findings)
    if findings[1].verdict == "accepted":
        findings += _run_plugin(xml)
    else:
        findings.append(
            Finding("the NPU plugin", "unknown", "not asked: it takes static shapes alone")
        )
    findings.append(
        Finding(
            "the driver's compiler", "unknown",
            "needs an NPU: memory, speed, and what a newer driver's compiler takes",
        )
    )  # fmt: skip
    return Readiness(manifest.name, tuple(findings))


def check_model(model: ov.Model, *, name: str, generation: str = "4000") -> Readiness:
    """Compares a program with the rules alone; no plugin is asked.

    Args:
        model: of OpenVINO.
        name: of it, in the report.
        generation: "3720" (Meteor Lake) or "4000" (Lunar Lake).

    Raises:
        OptionError: [option-value] a generation whose rules are not known.
    """
    _check_generation(generation)
    findings = [Finding("one program", "accepted", f"{len(model.get_ops())} operations")]
    findings += _rules(model)
    findings += check_operations(model, generation=generation)
    return Readiness(name, tuple(findings))


def _check_generation(generation: str) -> None:
    if generation not in GENERATIONS:
        raise OptionError(
            f"npu_compiler.check: generation is one of {', '.join(GENERATIONS)}; got "
            f"{generation!r}. Name one of these.",
            code="option-value",
        )


def _rules(model: ov.Model) -> Iterator[Finding]:
    yield _shapes(model)
    yield _types(model)
    yield _state(model)


def _shapes(model: ov.Model) -> Finding:
    dynamic = [
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if any(output.get_partial_shape().is_dynamic for output in node.outputs())
    ]
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


def _run_plugin(xml: Path) -> Iterator[Finding]:
    command = [sys.executable, "-m", "npu_compiler.readiness.plugin", str(xml)]
    rule = "the NPU plugin"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield Finding(rule, "unknown", f"took longer than {_TIMEOUT_S:.0f} s")
        return
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        yield Finding(rule, "refused", f"the plugin's process ended with {name}")
        return
    if done.returncode > 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(rule, "unknown", f"could not be asked: {last}")
        return
    result = json.loads(done.stdout.splitlines()[-1])
    if result["step"] != "done":
        yield Finding(rule, "refused", f"it cannot {result['step']} it: {result['failure']}")
        return
    yield Finding(rule, "accepted", "its path for machines without an NPU compiles and runs it")
    error = float(result["error"])
    verdict = "accepted" if error <= _TOLERANCE else "refused"
    yield Finding(
        "equal results", verdict,
        f"largest difference from float32 {error:.1e} of the largest value, bound {_TOLERANCE:.0e}",
    )  # fmt: skip

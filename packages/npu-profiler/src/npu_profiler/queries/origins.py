"""Where time comes from in the program's text: torch modules and Python lines.

Modules are told by `--modules` (calls on the host), by `--stacks` (Python calls of modules), and by
layers that know which module they come from; lines by `--stacks` and by layers.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from npu_profiler.queries.launches import Launch
from npu_profiler.queries.programs import layer_ns
from npu_profiler.reading import SliceRef, Trace

__all__ = ["OriginRow", "has_python_calls", "line_rows", "module_rows"]

_MODULE_CALL = "nn.Module: "
_OWN_LINE = re.compile(r".+\(\d+\): .+")


@dataclass(frozen=True, slots=True)
class OriginRow:
    """All that came from one module or one line.

    Attributes:
        name: path of the module, or "file.py:12" of a layer, or "file.py(12): function" of a call.
        kind: the module's class, where it is known.
        calls: on the host.
        self_ns: host time without calls of the same sort within.
        total_ns: host time with them.
        device_ns: time of programs that were launched within the calls.
        layers: recorded runs of layers that come from it.
        layer_ns: their time.
    """

    name: str
    kind: str
    calls: int
    self_ns: int
    total_ns: int
    device_ns: int
    layers: int
    layer_ns: int


def module_rows(trace: Trace, launched: Iterable[Launch]) -> list[OriginRow]:
    """Modules, those with most time on device and host first."""
    if any(True for _ in trace.slices("module")):
        return _rows(trace, launched, "module", lambda call: call.name, "module")
    return _rows(trace, launched, "python_function", _called_module, "module")


def line_rows(trace: Trace, launched: Iterable[Launch]) -> list[OriginRow]:
    """Python calls and lines of layers, those with most time on device and host first."""
    return _rows(trace, launched, "python_function", _called_line, "line")


def has_python_calls(trace: Trace) -> bool:
    """Whether the trace was recorded with `--stacks`."""
    return any(True for _ in trace.slices("python_function"))


def _rows(
    trace: Trace,
    launched: Iterable[Launch],
    category: str,
    name_of: Callable[[SliceRef], str],
    layer_arg: str,
) -> list[OriginRow]:
    calls: Counter[str] = Counter()
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    kinds: dict[str, str] = {}
    for call in trace.slices(category):
        name = name_of(call)
        if not name:
            continue
        around = [name_of(other) for other in call.ancestors() if other.category == category]
        outer = [other for other in around if other]
        calls[name] += 1
        own[name] += call.duration_ns
        if name not in outer:
            whole[name] += call.duration_ns
        if outer:
            own[outer[0]] -= call.duration_ns
        kinds.setdefault(name, str(call.args.get("class", "")))
    device: Counter[str] = Counter()
    for launch in launched:
        names = {name_of(around) for around in launch.causes() if around.category == category}
        for name in names - {""}:
            device[name] += launch.program.duration_ns
    layers: Counter[str] = Counter()
    layered: Counter[str] = Counter()
    for layer in trace.slices("layer"):
        name = str(layer.args.get(layer_arg, ""))
        if name:
            layers[name] += 1
            layered[name] += layer_ns(layer)
    rows = [
        OriginRow(
            name,
            kinds.get(name, ""),
            calls[name],
            own[name],
            whole[name],
            device[name],
            layers[name],
            layered[name],
        )
        for name in {*calls, *layers}
    ]
    return sorted(
        rows,
        key=lambda row: (-max(row.layer_ns, row.device_ns), -row.self_ns, row.name),
    )


def _called_module(call: SliceRef) -> str:
    name = call.name
    return name.removeprefix(_MODULE_CALL) if name.startswith(_MODULE_CALL) else ""


def _called_line(call: SliceRef) -> str:
    return call.name if _OWN_LINE.fullmatch(call.name) else ""

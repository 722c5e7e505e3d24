"""Half precision: simulates float16 call by call to find accuracy losses, without an NPU."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from npu_compiler.errors import ExportError, OptionError
from npu_compiler.exported.capture import capture_program, read_saved_program, without_composites
from npu_compiler.graph.nodes import op_name, written_inputs
from npu_compiler.graph.origins import keep_name, python_line
from npu_runtime.public_calls import public_call

__all__ = [
    "TOLERANCE",
    "HalfCall",
    "HalfPrecision",
    "HalfRun",
    "KeptSearch",
    "check_graph",
    "check_half",
    "check_half_file",
    "deadline_of",
    "is_finding",
    "is_lossy",
    "run_both",
    "search_kept",
]

# Sums within a call accumulate in float32, as in an NPU's MAC array. Scalar operands, such as the
# 1e-8 of `x + 1e-8`, are rounded too; attributes are not.

# Rounding loses about 2e-4 of a result. A larger loss means values near float16's smallest.
_LOSS = 1e-2
# Ops with scalar arguments that become constants of a program, like tensors.
_OPERANDS = frozenset(
    {"add", "sub", "rsub", "mul", "div", "where", "masked_fill", "full", "full_like",
     "scalar_tensor", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "fill"}
)  # fmt: skip


@dataclass(frozen=True)
class HalfRun:
    """A run in both precisions: its calls, the error of the worst output, and the calls left out.

    `left` counts calls after the deadline; the error is infinite then.
    """

    calls: tuple[HalfCall, ...]
    error: float
    left: int = 0


def is_finding(call: HalfCall) -> bool:
    """Whether a call's error exceeds plain rounding."""
    return call.overflowed > 0 or call.invalid > 0 or is_lossy(call)


def is_lossy(call: HalfCall) -> bool:
    """Whether a call's result is too small for float16."""
    return call.loss > _LOSS


def run_both(
    module: fx.GraphModule,
    inputs: Mapping[str, Any],
    is_kept: Callable[[fx.Node], bool],
    *,
    deadline: float = math.inf,
) -> HalfRun:
    """Runs a functional graph of calls, with float32 floats, in both precisions.

    A call for which `is_kept` is true is computed in float32 from unchanged inputs. The run ends at
    the deadline, by time.monotonic().
    """
    wide: dict[fx.Node, Any] = {}
    half: dict[fx.Node, Any] = {}
    calls: list[HalfCall] = []
    last_use = _last_uses(module.graph)
    written = {found for node in module.graph.nodes for found in written_inputs(node)}
    written_error = 0.0
    nodes = list(module.graph.nodes)
    with torch.no_grad():
        for position, node in enumerate(nodes):
            if node.op == "output":
                error = max(written_error, _outputs_error(node, wide, half))
                return HalfRun(tuple(calls), error)
            if node.op in ("placeholder", "get_attr"):
                value = inputs[node.name] if node.op == "placeholder" else _held(module, node)
                wide[node] = half[node] = value
                if node in written:  # the caller's graph stays unchanged
                    wide[node], half[node] = value.clone(), value.clone()
                continue
            if time.monotonic() > deadline:
                left = sum(other.op == "call_function" for other in nodes[position:])
                return HalfRun(tuple(calls), math.inf, left)
            wide[node] = _call(node, *_arguments(node, wide))
            half[node], call = _half_call(node, half, wide[node], is_kept=is_kept(node))
            if call is not None:
                calls.append(call)
                if any(True for _ in written_inputs(node)):
                    written_error = max(written_error, call.error)
            for dead in last_use.get(node, ()):
                del wide[dead], half[dead]
    raise AssertionError("a graph ends with its output")


def _half_call(
    node: fx.Node, half: Mapping[fx.Node, Any], wide: Any, *, is_kept: bool
) -> tuple[Any, HalfCall | None]:
    given = _arguments(node, half)
    taken = given if is_kept else _half_arguments(node, given)
    exact = _call(node, *taken)
    result = exact if is_kept else pytree.tree_map_only(torch.Tensor, _rounded, exact)
    parts = list(_floats(exact, result, wide))
    if not parts:
        return result, None
    infinite, is_number = _new_infinities(given, taken)
    has_nan = any(_has_nan(value) for value in pytree.tree_leaves(taken))
    away = sum(float((full - kept)[kept.isfinite()].square().sum()) for full, kept, _ in parts)
    size = sum(float(full[kept.isfinite()].square().sum()) for full, kept, _ in parts)
    # An overflowing scalar is reported if it reaches the result, which a mask's scalar seldom does.
    infinite += sum(
        _count(kept.isinf() & (full.isfinite() | (right.isfinite() & is_number)))
        for full, kept, right in parts
    )
    call = HalfCall(
        name=node.name,
        op=op_name(node.target),
        line=python_line(node),
        module=keep_name(node),
        overflowed=infinite,
        invalid=0 if has_nan else sum(_count(e.isnan() & ~w.isnan()) for _, e, w in parts),
        lost=sum(_count((f != 0) & (e == 0)) for f, e, _ in parts),
        loss=(away / size) ** 0.5 if size else 0.0,
        error=max(_error(e, w) for _, e, w in parts),
    )
    return result, call


def _half_arguments(node: fx.Node, given: tuple[Any, Any]) -> tuple[Any, Any]:
    taken = pytree.tree_map_only(torch.Tensor, _rounded, given)
    if _plain_name(node) in _OPERANDS:
        taken = pytree.tree_map_only(float, _rounded_number, taken)
    return taken[0], taken[1]


def _arguments(node: fx.Node, values: Mapping[fx.Node, Any]) -> tuple[Any, Any]:
    return fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)


def _call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _held(module: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _plain_name(node: fx.Node) -> str:
    return op_name(node.target).split(".")[1] if "." in op_name(node.target) else ""


def _rounded(value: torch.Tensor) -> torch.Tensor:
    return value.half().to(value.dtype) if value.is_floating_point() else value


def _rounded_number(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).half())


def _new_infinities(given: Any, taken: Any) -> tuple[int, bool]:
    """Returns how many tensor values overflow as operands, and whether a scalar does."""
    count, is_number = 0, False
    for before, after in zip(pytree.tree_leaves(given), pytree.tree_leaves(taken), strict=True):
        if isinstance(before, torch.Tensor):
            count += _count(before.isfinite() & after.isinf())
        elif isinstance(before, float):
            is_number = is_number or (math.isfinite(before) and math.isinf(after))
    return count, is_number


def _floats(*values: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yields the float tensors of a call's results in both precisions, in float64."""
    for parts in zip(*map(pytree.tree_leaves, values), strict=True):
        if isinstance(parts[0], torch.Tensor) and parts[0].is_floating_point():
            full, kept, wide = (part.double() for part in parts)
            if full.numel():
                yield full, kept, wide


def _count(mask: torch.Tensor) -> int:
    return int(mask.sum())


def _has_nan(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.isnan().any())


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    is_finite = expected.isfinite()
    others = torch.equal(found[~is_finite].nan_to_num(), expected[~is_finite].nan_to_num())
    if not others or not found[is_finite].isfinite().all():
        return float("inf")
    if not is_finite.any():
        return 0.0
    scale = max(float(expected[is_finite].abs().max()), 1e-6)
    return float((found - expected)[is_finite].abs().max()) / scale


def _outputs_error(
    node: fx.Node, wide: Mapping[fx.Node, Any], half: Mapping[fx.Node, Any]
) -> float:
    expected, found = _arguments(node, wide)[0], _arguments(node, half)[0]
    return max((_error(e, w) for e, _, w in _floats(found, found, expected)), default=0.0)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Maps each node to the values that no later node reads."""
    seen: set[fx.Node] = set()
    last: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        for source in (*node.all_input_nodes, node):
            if source not in seen:
                seen.add(source)
                if node.op == "call_function":
                    last.setdefault(node, []).append(source)
    return last


# Largest error of an output, divided by its largest value.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class KeptSearch:
    """The result of a search: runs before and after it, and names or patterns of modules kept.

    `left_out` describes the part that was skipped at the deadline; "" for none.
    """

    first: HalfRun
    last: HalfRun
    kept: tuple[str, ...]
    left_out: str = ""


def search_kept(
    module: fx.GraphModule,
    values: Mapping[str, Any],
    *,
    kept: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    mend: bool = True,
    deadline: float = math.inf,
) -> KeptSearch:
    """Runs a graph in both precisions, and keeps modules in float32 until outputs are close.

    `kept` stays in float32 from the start; with `mend`, more modules may join it. No run begins
    after the deadline, by time.monotonic().
    """
    given, names = tuple(kept), list(kept)
    run = first = _run(module, values, names, deadline)
    if first.left:
        left_out = f"the last {first.left} of {first.left + len(first.calls)} calls"
        return KeptSearch(first, first, given, left_out)
    while mend and run.error > tolerance and (more := _next_to_keep(run, tolerance, names)):
        trial = _run(module, values, [*names, *more], deadline)
        if trial.left:
            return KeptSearch(
                first, run, tuple(names), "the search for modules that must stay in float32"
            )
        names, run = names + more, trial
    for added in reversed(names[len(given) :]):  # an overflow may be harmless
        others = [other for other in names if other != added]
        trial = _run(module, values, others, deadline)
        if trial.left:
            return KeptSearch(
                first, run, tuple(names), "the search for modules that may leave float32"
            )
        if trial.error <= tolerance:
            names, run = others, trial
    return KeptSearch(first, run, tuple(names))


def _run(
    module: fx.GraphModule, values: Mapping[str, Any], kept: Sequence[str], deadline: float
) -> HalfRun:
    def is_kept(node: fx.Node) -> bool:
        return any(fnmatchcase(keep_name(node), pattern) for pattern in kept)

    return run_both(module, values, is_kept, deadline=deadline)


def _next_to_keep(run: HalfRun, tolerance: float, kept: Sequence[str]) -> list[str]:
    """Returns the modules with calls that cause an error of their own; empty if there are none."""
    harmful = [call for call in run.calls if call.overflowed or is_lossy(call)]
    if not harmful:  # NaN from infinities disappears once the overflow is gone
        harmful = [call for call in run.calls if is_finding(call)]
    names = [call.module for call in harmful]
    if not names and run.error > tolerance:
        names = [call.module for call in run.calls if call.error > tolerance]
        names = [name for name in names if name not in kept][:1]
    return [name for name in dict.fromkeys(names) if name not in kept]


_SHOWN = 20


@dataclass(frozen=True)
class HalfCall:
    """One call with a result that half precision changed.

    Attributes:
        name: of the node in the captured graph.
        op: such as "aten.pow.Tensor_Scalar".
        line: "file.py:12", of the Python code; "" if unknown.
        module: the name that CompilerConfig.keep_float32 takes.
        overflowed: finite numbers of its inputs and its result that became infinite.
        invalid: results that are NaN here, with no NaN among its inputs, and not in float32.
        lost: results that became zero.
        loss: L2 norm of its own rounding error, divided by the L2 norm of the result.
        error: largest difference from float32, divided by the largest float32 value; infinity if
            only one of the two is finite.
    """

    name: str
    op: str
    line: str
    module: str
    overflowed: int
    invalid: int
    lost: int
    loss: float
    error: float

    def __str__(self) -> str:
        said = [
            (self.overflowed, f"{self.overflowed} overflow"),
            (self.invalid, f"{self.invalid} become NaN"),
            (self.lost, f"{self.lost} become zero (loss {self.loss:.0e})"),
        ]
        what = ", ".join(text for count, text in said if count) or f"loss {self.loss:.0e}"
        where = ", ".join(filter(None, (self.line, self.module)))
        return f"{self.op} ({self.name}{', ' if where else ''}{where}): {what}"


@dataclass(frozen=True)
class HalfPrecision:
    """The behaviour of a model in half precision on the given inputs.

    Attributes:
        model: its name.
        calls: every call that computes with floats, in order.
        findings: the calls that overflow, become NaN or lose more than rounding does, before any
            module was kept in float32.
        error: of the worst output; see HalfCall.
        error_before: the same before any module was kept in float32.
        tolerance: the requested tolerance.
        keep_float32: modules that were computed in float32; pass them to CompilerConfig.
        left_out: the part for which the budget had no seconds left; "" for none.
        calls_left_out: how many calls were not computed. With any, the errors are infinite.
    """

    model: str
    calls: tuple[HalfCall, ...]
    findings: tuple[HalfCall, ...]
    error: float
    error_before: float
    tolerance: float
    keep_float32: tuple[str, ...]
    left_out: str = ""
    calls_left_out: int = 0

    @property
    def is_harmless(self) -> bool:
        """Whether the outputs match float32's within the tolerance."""
        return self.error <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON-compatible values; infinities become the string "inf"."""
        fields = {**dataclasses.asdict(self), "is_harmless": self.is_harmless}
        return {key: _finite(value) for key, value in fields.items()}

    def to_json(self) -> str:
        """Returns as_dict() as a JSON object."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        found = (
            "not computed to its outputs" if self.calls_left_out else self._off(self.error_before)
        )
        lines = [f"{self.model}: in half precision, {found}"]
        lines += [f"  {finding}" for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"  and {len(self.findings) - _SHOWN} more calls")
        if self.left_out:
            lines.append(f"left out for lack of time: {self.left_out}")
        if self.calls_left_out:
            return "\n".join(lines)
        if self.keep_float32:
            lines.append(f"with {', '.join(self.keep_float32)} in float32, {self._off(self.error)}")
            lines.append(f'as an option: {{"keep_float32": {json.dumps(self.keep_float32)}}}')
        elif not self.is_harmless:
            worst = max(self.calls, key=lambda call: call.error, default=None)
            if worst is not None and not self.findings:
                lines.append(f"the largest error is at {worst}")
            lines.append("npu_compiler.check_half(..., mend=True) looks for modules to keep")
        elif self.findings:
            lines.append("these calls reach no output that matters: nothing must stay in float32")
        return "\n".join(lines)

    def _off(self, error: float) -> str:
        verdict = "within" if error <= self.tolerance else "more than"
        return f"outputs are off by {error:.1e}, {verdict} {self.tolerance:.0e}"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return "inf" if value == float("inf") else value


@public_call
def check_half(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    keep_float32: Sequence[str] = (),
    mend: bool = False,
    tolerance: float = TOLERANCE,
    budget_s: float | None = None,
) -> HalfPrecision:
    """Checks a model in half precision, in which an NPU computes; needs no NPU.

    Every call of the captured graph runs with float16 inputs and a float16 result, and sums in
    float32. The findings hold for these inputs.

    Args:
        model: a torch module in float32.
        example_inputs: positional arguments of a call, with realistic values.
        kwargs: arguments by name.
        keep_float32: modules to compute in float32; see CompilerConfig.
        mend: look for modules to compute in float32 until the outputs are within the tolerance,
            then drop the modules that are not needed for it.
        tolerance: largest error of an output, divided by its largest value.
        budget_s: seconds after which the rest is left out, those of the capture among them; None
            for no limit.

    Returns:
        Every call, and the findings among them. With `mend`, also the modules to keep, and the
        calls and the error of the run that keeps them; findings always belong to the run before.

    Raises:
        ExportError: [export-capture] for a model that is not a single graph; [half-dtype] for
            floats that are not float32.
        OptionError: [option-value] for a name in keep_float32 that no call has.
    """
    deadline = deadline_of(budget_s)
    program = capture_program(model, example_inputs, kwargs or {})
    values = _values(program, example_inputs, kwargs or {})
    return check_graph(
        type(model).__name__,
        program.graph_module,
        values,
        keep_float32=keep_float32,
        mend=mend,
        tolerance=tolerance,
        deadline=deadline,
    )


def deadline_of(budget_s: float | None) -> float:
    """Returns the end of a budget that begins now, by time.monotonic(); infinity for None."""
    return math.inf if budget_s is None else time.monotonic() + budget_s


def check_half_file(
    path: str | os.PathLike[str], *, budget_s: float | None = None
) -> HalfPrecision:
    """Checks a file of torch.export.save with its own example inputs, as check_half does a module.

    Searches for modules to keep in float32. Raises [saved-program] for another file.
    """
    deadline = deadline_of(budget_s)
    saved = read_saved_program(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning of torch about its pytrees of inputs
        program = without_composites(saved)
        values = _values(program, *saved.example_inputs)
    return check_graph(Path(path).name, program.graph_module, values, deadline=deadline)


def check_graph(
    name: str,
    module: fx.GraphModule,
    values: Mapping[str, Any],
    *,
    keep_float32: Sequence[str] = (),
    mend: bool = True,
    tolerance: float = TOLERANCE,
    deadline: float = math.inf,
) -> HalfPrecision:
    """Checks a graph on its placeholders' values, under a name, as check_half does a module."""
    _check_dtypes(name, values)
    kept = tuple(keep_float32)
    _check_names(kept, module.graph)
    found = search_kept(
        module, values, kept=kept, tolerance=tolerance, mend=mend, deadline=deadline
    )
    findings = tuple(filter(is_finding, found.first.calls))
    return HalfPrecision(
        model=name,
        calls=found.last.calls,
        findings=findings,
        error=found.last.error,
        error_before=found.first.error,
        tolerance=tolerance,
        keep_float32=found.kept,
        left_out=found.left_out,
        calls_left_out=found.first.left,
    )


def _values(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of each input of the graph, weights and constants among them."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    given = program._graph_module_flat_inputs(args, dict(kwargs))
    return {node.name: value for node, value in zip(nodes, given, strict=True)}


def _check_dtypes(model: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if is_float and value.dtype is not torch.float32:
            raise ExportError(
                f"{model}: weights and inputs must be float32 for a comparison with half "
                f"precision, got {value.dtype} for {name}. Use model.float() and float inputs.",
                code="half-dtype",
            )


def _check_names(patterns: Sequence[str], graph: fx.Graph) -> None:
    names = sorted({keep_name(node) for node in graph.nodes if node.op == "call_function"})
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            close = difflib.get_close_matches(pattern, names, n=3) or names[:3]
            raise OptionError(
                f"`keep_float32` must name modules with calls, got "
                f"{pattern!r}. Similar names in this model are {', '.join(close)}.",
                code="option-value",
            )

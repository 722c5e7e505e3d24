"""Compares a graph's results in a mode with eager torch, within tolerances."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from npu_compiler.fuzz.capturing import (
    Compiled,
    captured_by_aot,
    captured_by_dynamo,
    recorded,
    traced,
)
from npu_compiler.fuzz.graph import RandomGraph
from npu_compiler.fuzz.modes import PLAIN, Mode
from npu_compiler.graph_compiler.records import GraphRecord, collecting
from npu_compiler.options import CompilerConfig

__all__ = [
    "Comparison",
    "allowed_differences",
    "compare",
    "difference",
    "unsettled_places",
    "with_indices_inside",
]

# Rounding of one op by the coarsest dtype, relative to the largest intermediate value.
_ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}
# Eager's distance from float64 shows how a graph amplifies rounding. So does the change of a result
# under the largest possible other rounding, which needs a smaller factor.
_SPREAD, _SPREAD_OTHERWISE = 8.0, 2.0
_DISTURBANCES = 3
# Bound for numbers that count as exact in drawing, so that they may enter a comparison.
_TINY = 1e-30
_LEAST_NORMAL = torch.finfo(torch.float32).tiny


def allowed_differences(
    graph: RandomGraph, expected: Sequence[torch.Tensor], precision: str | None = None
) -> list[float]:
    """Returns the largest allowed difference of each result, for programs in a precision."""
    values = _floats(graph.values())
    largest = max((_largest(value) for value in values), default=0.0)
    coarsest = _coarsest(values, precision)
    exact = graph.compared(graph.values(wide=True))
    others = [(list(expected), _SPREAD)]
    for seed in range(_DISTURBANCES):
        disturb = _rounded_otherwise(coarsest, seed)
        found = graph.compared(graph.values(wide=True, disturb=disturb))
        others.append((found, _SPREAD_OTHERWISE))
    bounds = []
    for index, tensor in enumerate(expected):
        if not tensor.is_floating_point():
            bounds.append(0.0)
            continue
        noise = max(room * _distance(other[index], exact[index]) for other, room in others)
        bounds.append(_ROUNDING[coarsest] * max(1.0, largest) + noise)
    return bounds


def _floats(values: Sequence[Any]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]


def _coarsest(values: Sequence[torch.Tensor], precision: str | None) -> torch.dtype:
    """Returns the dtype of a graph's numbers, or of its program, that rounds most."""
    dtypes = {value.dtype for value in values}
    if precision is not None and dtypes:
        dtypes.add(getattr(torch, precision))
    return max(
        (dtype for dtype in dtypes if dtype in _ROUNDING),
        key=lambda dtype: _ROUNDING[dtype],
        default=torch.float32,
    )


def _rounded_otherwise(
    dtype: torch.dtype, seed: int
) -> Callable[[Any, Sequence[torch.Tensor]], None]:
    """Perturbs numbers that a dtype cannot represent, by its rounding of the largest number."""
    generator = torch.Generator().manual_seed(seed)

    def disturb(value: Any, operands: Sequence[torch.Tensor]) -> None:
        for part in value if isinstance(value, (tuple, list)) else [value]:
            if not isinstance(part, torch.Tensor) or not part.is_floating_point():
                continue
            if 0 in part.stride():  # elements share memory, so it cannot be written
                continue
            is_rounded = (part != part.to(dtype)) & part.isfinite() & (part.abs() > _TINY)
            sizes = [_largest(one) for one in (*operands, part) if one.is_floating_point()]
            step = torch.finfo(dtype).eps / 2 * max(1.0, *sizes)
            shares = torch.rand(part.shape, generator=generator, dtype=torch.float64) * 2 - 1
            if bool(is_rounded.any()):
                part += torch.where(is_rounded, step * shares, 0.0)

    return disturb


# Calls whose sums of products or squares may overflow for values beyond _SQUARED.
_SUMMING = frozenset(
    {
        *("F.adaptive_avg_pool2d", "F.avg_pool2d", "F.conv1d", "F.conv2d", "F.conv_transpose2d"),
        *("F.group_norm", "F.layer_norm", "F.linear", "F.normalize", "F.rms_norm"),
        *("F.scaled_dot_product_attention", "method.sum", "operator.matmul", "torch.baddbmm"),
        *("torch.bmm", "torch.cumsum", "torch.einsum", "torch.matmul", "torch.mean", "torch.mm"),
        *("torch.prod", "torch.std", "torch.sum", "torch.var"),
    }
)
_SQUARED = 1e18
# Calls that return one of two zeros, which are equal.
_CHOOSING = frozenset(
    {
        *("F.relu", "F.relu6", "method.relu_", "torch.amax", "torch.amin", "torch.clamp"),
        *("torch.max", "torch.maximum", "torch.min", "torch.minimum"),
    }
)


def unsettled_places(
    graph: RandomGraph,
    expected: Sequence[torch.Tensor],
    allowed: Sequence[float],
    precision: str | None = None,
) -> list[torch.Tensor]:
    """Returns the places at which torch has several right results; see docs/concepts/nan.md.

    Torch's results differ with denormals flushed to zero, between kernels of attention, gelu,
    interpolation or convolution for numbers that are not finite, in the order of equal numbers, in
    the sign of a zero that a call chooses, and in sums that overflow by their order. Rounding
    decides whether a quotient by a number near zero is finite. A float16 program may also overflow
    and underflow as torch does with each value rounded to float16, or compute in float32.
    """
    values = _floats(graph.values())
    calls = {step.target for step in graph.steps}
    is_finite = all(bool(value.isfinite().all()) for value in values)
    contexts: list[contextlib.AbstractContextManager[Any]] = []
    if _has_denormals(values):
        contexts.append(_without_denormals())
    if not is_finite and "F.scaled_dot_product_attention" in calls:
        contexts.append(sdpa_kernel(SDPBackend.MATH))
    if "torch.sort" in calls or (not is_finite and calls & {"F.gelu", "F.conv1d", "F.conv2d"}):
        contexts.append(_OtherKernels())
    others = []
    for context in contexts:
        with context:
            others.append(graph.compared(graph.values()))
    others += [
        graph.compared(graph.values(disturb=change))
        for change in _changes(calls, values, precision)
    ]
    exact = graph.compared(graph.values(wide=True))
    if any(value.dtype is torch.float16 for value in values):
        narrow = zip(exact, expected, strict=True)
        others.append([wide.to(reference.dtype) for wide, reference in narrow])
    if graph.is_writing and not is_finite and "method.expand" in calls:
        # torch adds the difference to what was expanded: NaN for infinities.
        nan = [v.new_full(v.shape, torch.nan) if v.is_floating_point() else v for v in expected]
        others.append(nan)
    places = [torch.zeros(tensor.shape, dtype=torch.bool) for tensor in expected]
    for other in others:
        for place, found, reference, bound in zip(places, other, expected, allowed, strict=True):
            if found.shape == reference.shape:  # else it depends on data
                place |= ~_is_near(found, reference, bound)
    disturb = _rounded_otherwise(_coarsest(values, precision), 0)
    rounded = graph.compared(graph.values(wide=True, disturb=disturb))
    for place, wide, coarse in zip(places, exact, rounded, strict=True):
        if place.shape == wide.shape == coarse.shape:
            place |= wide.isfinite() != coarse.isfinite()
    return places


def _changes(
    calls: Set[str], values: Sequence[torch.Tensor], precision: str | None
) -> list[Callable[[Any, Sequence[torch.Tensor]], None]]:
    """Returns disturbances that lead to the other right results of a graph's calls."""
    changes = []
    if precision == "float16" or any(value.dtype is torch.float16 for value in values):
        changes.append(_changing(lambda value: value.half().to(value.dtype)))
    if _SUMMING & calls and _has_large(values):
        changes += [_changing(_infinite_beyond), _changing(_bounded)]
        changes.append(_changing(_without_nan, after=_has_large))
    if _has_denormals(values):  # some kernels do not flush those that they read
        changes += [_changing(_flushed), _changing(_flushed, after=bool)]
    if "F.interpolate" in calls and any(bool(value.isinf().any()) for value in values):
        changes.append(_changing(_bounded))
    if _CHOOSING & calls:
        changes.append(_changing(_positive_zero, after=bool))
    return changes


def _has_denormals(values: Sequence[torch.Tensor]) -> bool:
    return any(bool(((v != 0) & (v.abs() < _LEAST_NORMAL)).any()) for v in values)


def _has_large(values: Sequence[torch.Tensor]) -> bool:
    return any(_largest(v) > _SQUARED for v in values if v.is_floating_point())


def _infinite_beyond(value: torch.Tensor) -> torch.Tensor:
    if torch.finfo(value.dtype).max < _SQUARED:
        return value
    return torch.where(value.abs() > _SQUARED, value * torch.inf, value)


def _bounded(value: torch.Tensor) -> torch.Tensor:
    bound = min(_SQUARED, torch.finfo(value.dtype).max)
    return value.clamp(-bound, bound)


def _flushed(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value.abs() < _LEAST_NORMAL, 0.0, value)


def _without_nan(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value.isnan(), 0.0, value)


def _positive_zero(value: torch.Tensor) -> torch.Tensor:
    return value + 0.0


def _changing(
    change: Callable[[torch.Tensor], torch.Tensor],
    *,
    after: Callable[[Sequence[torch.Tensor]], bool] | None = None,
) -> Callable[[Any, Sequence[torch.Tensor]], None]:
    """Writes a change of each floating-point value in its place.

    Args:
        change: the change.
        after: of which operands' results are changed; by default all, and inputs.
    """

    def disturb(value: Any, operands: Sequence[torch.Tensor]) -> None:
        if after is not None and not after(operands):
            return
        for part in value if isinstance(value, (tuple, list)) else [value]:
            is_float = isinstance(part, torch.Tensor) and part.is_floating_point()
            if is_float and 0 not in part.stride():  # elements share memory: it cannot be written
                part.copy_(change(part))

    return disturb


@contextlib.contextmanager
def _without_denormals() -> Iterator[None]:
    """Flushes denormals in this thread, the only one for such small tensors."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class _OtherKernels(TorchFunctionMode):
    """Results of other kernels: for gelu of an infinity, and for weights on padding."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Makes a call."""
        options = kwargs or {}
        if func is torch.sort:
            options = {**options, "stable": True}
        result = func(*args, **options)
        if func is F.gelu and options.get("approximate", "none") == "none":
            return _changed(result, args[0].isinf())
        if func not in (F.conv1d, F.conv2d) or bool(args[1].isfinite().all()):
            return result
        image, weight, *rest = args
        options = {name: value for name, value in options.items() if name != "bias"}
        ones = torch.ones_like(image, memory_format=torch.contiguous_format)
        places = func(ones, torch.ones_like(weight), None, *rest[1:], **options)
        return _changed(result, places < weight[0].numel())


def _changed(result: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with other values at these positions."""
    other = torch.where(
        result.isnan(), torch.zeros_like(result), torch.full_like(result, torch.nan)
    )
    return torch.where(places, other, result)


def difference(
    results: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    allowed: Sequence[float],
    unsettled: Sequence[torch.Tensor] = (),
) -> str:
    """Returns a description of differences beyond tolerance outside of unsettled positions, or "".

    NaN equals only NaN, and an infinity only the same infinity.
    """
    for index, (result, reference) in enumerate(zip(results, expected, strict=True)):
        left = result.detach().cpu()
        if (left.dtype, left.shape) != (reference.dtype, reference.shape):
            return (
                f"result {index}: {left.dtype} {tuple(left.shape)}, eager has {reference.dtype} "
                f"{tuple(reference.shape)}"
            )
        wrong = ~_is_near(left, reference, allowed[index])
        if unsettled:
            wrong &= ~unsettled[index]
        if bool(wrong.any()):
            return f"result {index}: {_told(left[wrong], reference[wrong], allowed[index])}"
    return ""


def _is_near(left: torch.Tensor, reference: torch.Tensor, allowed: float) -> torch.Tensor:
    """Returns where two tensors of one dtype and shape agree within tolerance."""
    same = left == reference
    if not left.dtype.is_floating_point:
        return same  # exact, without overflow of integer differences
    are_finite = left.isfinite() & reference.isfinite()
    gap = (left.double() - reference.double()).abs()
    return same | (left.isnan() & reference.isnan()) | (are_finite & (gap <= allowed))


def _told(left: torch.Tensor, reference: torch.Tensor, allowed: float) -> str:
    """Describes wrong numbers."""
    odd = ~(left.isfinite() & reference.isfinite())
    if bool(odd.any()):
        return f"has {float(left[odd][0])} where eager has {float(reference[odd][0])}"
    is_float = left.dtype.is_floating_point
    gap = _largest(left.double() - reference.double()) if is_float else 1.0
    return f"differs by {gap:.3g}, allowed {allowed:.3g}"


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    if left.shape != right.shape:  # depends on data
        return 0.0
    return _largest(left.double() - right.double())


def _largest(gap: torch.Tensor) -> float:
    """Returns the largest finite magnitude."""
    finite = gap.abs()[gap.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


# Capture of graphs is in capturing.py.

_CACHE_SIZE = "NPU_COMPILE_CACHE_SIZE_MB"
_SOURCE = re.compile(r"x(\d+)\.(size|stride)\(\)\[(\d+)\]")
_OTHER_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12)


@dataclass(frozen=True)
class Comparison:
    """The result of a graph."""

    # "equal"; "differs"; "silent", for an index out of range that raises nothing; "raises";
    # "invalid", for a graph that eager refuses, or whose index it does not refuse, or that torch
    # cannot capture.
    kind: str = "equal"
    detail: str = ""  # the difference, or the error
    programs: int = 0  # number of programs
    # nodes, lowered: number of calls, and of those in programs
    nodes: int = 0
    lowered: int = 0
    calls: int = 0  # number of comparisons, including other sizes
    from_cache: int = 0  # number of programs that were neither lowered nor compiled


def compare(graph: RandomGraph, mode: Mode = PLAIN) -> Comparison:
    """Runs a graph eagerly and compiled, and compares.

    The compiled graph is called twice. A graph with dynamic shapes is also called with other sizes.
    One that starts from the cache is compiled, and then loaded as in a second process. A graph with
    an index out of range must raise. It is called with one in range before, and after if earlier
    calls do not change its buffers.

    Args:
        graph: the graph to run.
        mode: the mode of compilation.
    """
    with torch.no_grad(), warnings.catch_warnings(), _cache(mode) as directory:
        warnings.simplefilter("ignore")
        run = _Run(graph, mode, mode.config(directory))
        with collecting() as records:
            try:
                run.judge()
            except Exception as error:  # noqa: BLE001  # any failure is a finding
                text = " ".join(str(error).split())
                run.end = ("raises", f"{type(error).__name__}: {text[:300]}")
                with _without_denormals():
                    is_refused = not _runs(graph)
                if is_refused:
                    run.end = ("invalid", "eager refuses it where denormals are zeros")
                if _is_refused_by_torch(graph, str(error)):
                    run.end = ("invalid", "torch refuses to capture it, for any backend")
    return _told_of_comparison(run, records)


def _told_of_comparison(run: _Run, records: Sequence[GraphRecord]) -> Comparison:
    programs = [program for record in records for program in record.programs]
    return Comparison(
        kind=run.end[0],
        detail=run.end[1],
        programs=len(programs),
        nodes=sum(record.node_count for record in records),
        lowered=sum(record.lowered_count for record in records),
        calls=run.calls,
        from_cache=sum(program.from_cache for program in programs),
    )


@contextlib.contextmanager
def _cache(mode: Mode) -> Iterator[Path | None]:
    """Returns a directory for programs that are loaded again; others are not stored."""
    before = os.environ.get(_CACHE_SIZE)
    with contextlib.ExitStack() as stack:
        directory = None
        if mode.start == "cache":
            memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
            made = tempfile.TemporaryDirectory(prefix="npu-graphs-", dir=memory)
            directory = Path(stack.enter_context(made))
        os.environ[_CACHE_SIZE] = "0" if directory is None else "100"
        try:
            yield directory
        finally:
            os.environ.pop(_CACHE_SIZE)
            if before is not None:
                os.environ[_CACHE_SIZE] = before


class _Run:
    """One graph in one mode, and the result so far."""

    def __init__(self, graph: RandomGraph, mode: Mode, config: CompilerConfig) -> None:
        self._inside = with_indices_inside(graph)
        self._outside = None if self._inside is graph else graph
        self._mode = mode
        self._config = config
        self.calls = 0
        self.end = ("equal", "")

    def judge(self) -> None:
        """Compares until something differs."""
        if not _runs(self._inside) or (self._outside is not None and _runs(self._outside)):
            self.end = ("invalid", "eager refuses it, or does not refuse its index")
            return
        if _reads_what_it_writes(self._inside):
            self.end = ("invalid", "a call reads memory that it writes: eager's order decides")
            return
        starts = 2 if self._mode.start == "cache" else 1
        for start in range(starts):
            compiled, others = self._compiled()
            if not self._agrees(compiled, self._inside, times=self._times()):
                return
            if any(not self._agrees(compiled, other, times=1) for other in others):
                return
            if not self._agrees_later(compiled):
                return
            if self._outside is not None and start == starts - 1:
                self._judge_outside(compiled, self._outside)

    def _agrees_later(self, compiled: Compiled) -> bool:
        """Compares further calls, on inputs of other classes than the first.

        Only verification, if enabled, can detect that programs are wrong for such inputs.
        """
        if self._config.verify == "off" or self._times() < 2 or self._outside is not None:
            return True
        # Other programs may drop NaN, and infinities cause NaN.
        is_whole = self._config.nan == "propagate"
        for fill in ("normal", "edges", "large") if is_whole else ("normal",):
            other = _refilled(self._inside, fill)
            if (
                other != self._inside
                and _runs(other)
                and not self._agrees(compiled, other, times=1)
            ):
                self.end = (self.end[0], f"in a later call, {fill}: {self.end[1]}")
                return False
        return True

    def _judge_outside(self, compiled: Compiled, graph: RandomGraph) -> None:
        """Checks that an index out of range raises, at the call or when results are read."""
        self.calls += 1
        try:
            for result in compiled(*self._given(graph)):
                result.cpu()
        except (RuntimeError, IndexError, ValueError):
            if self._times() > 1:
                self._agrees(compiled, self._inside, times=1)
            return
        self.end = ("silent", "an index out of range raises nothing, as it does eagerly")

    def _times(self) -> int:
        """Returns the number of calls to compare; only the first has fresh buffers."""
        graph = self._inside
        if not graph.is_writing:
            return 2
        pairs = zip(graph.tensors(), graph.values(), strict=False)
        frozen = [pair for pair, spec in zip(pairs, graph.inputs, strict=False) if spec.frozen]
        return 2 if all(torch.equal(fresh, used) for fresh, used in frozen) else 1

    def _compiled(self) -> tuple[Compiled, list[RandomGraph]]:
        graph, mode, config = self._inside, self._mode, self._config
        if mode.way == "traced":
            compiled, shapes = traced(graph, config, mode.device)
            return compiled, _other_sizes(graph, lambda other: _keeps_guards(graph, other, shapes))
        if mode.way == "dynamo":
            is_dynamic = mode.sizes != "static"
            compiled = captured_by_dynamo(graph, config, mode.device, dynamic=is_dynamic)
            return compiled, _other_sizes(graph, lambda other: True) if is_dynamic else []
        way = captured_by_aot if mode.way == "aot" or graph.is_writing else recorded
        return way(graph, config, mode.device), []

    def _agrees(self, compiled: Compiled, graph: RandomGraph, *, times: int) -> bool:
        expected = graph.compared(graph.values())
        allowed = allowed_differences(graph, expected, self._config.computed_in)
        unsettled = unsettled_places(graph, expected, allowed, self._config.computed_in)
        for _ in range(times):
            given = self._given(graph)
            results = [*compiled(*given), *given]
            self.calls += 1
            found = difference(results, expected, allowed, unsettled)
            if found:
                self.end = ("differs", found)
                return False
        return True

    def _given(self, graph: RandomGraph) -> list[torch.Tensor]:
        return [tensor.to(self._mode.device) for tensor in graph.given()]


def with_indices_inside(graph: RandomGraph) -> RandomGraph:
    """Returns the graph with all indices in range; the same object if they are."""
    if all(spec.fill != "outside" for spec in graph.inputs):
        return graph
    inputs = [
        dataclasses.replace(spec, fill="indices") if spec.fill == "outside" else spec
        for spec in graph.inputs
    ]
    return dataclasses.replace(graph, inputs=tuple(inputs))


def _refilled(graph: RandomGraph, fill: str) -> RandomGraph:
    """Returns a graph with other float inputs."""
    inputs = [
        dataclasses.replace(spec, fill=fill, seed=spec.seed + 1)
        if not spec.frozen and "float" in spec.dtype
        else spec
        for spec in graph.inputs
    ]
    return dataclasses.replace(graph, inputs=tuple(inputs))


def _other_sizes(graph: RandomGraph, fits: Callable[[RandomGraph], bool]) -> list[RandomGraph]:
    """Yields up to two variants of a graph with other sizes, which also run eagerly."""
    letters = sorted({name for names in graph.names() for name in names} - {"-"})
    found: list[RandomGraph] = []
    for size in _OTHER_SIZES:
        sizes = {name: size + place for place, name in enumerate(letters)}
        other = graph.resized(sizes)
        if other != graph and len(found) < 2 and fits(other) and _runs(other):
            found.append(other)
    return found


def _runs(graph: RandomGraph) -> bool:
    try:
        graph.values()
    except (RuntimeError, IndexError):
        return False
    return True


def _reads_what_it_writes(graph: RandomGraph) -> bool:
    """Whether a call writes to memory that it also reads in another order.

    torch refuses some of these, and leaves the result of others to its order of work.
    """
    found: list[bool] = []

    def look(value: Any, operands: Sequence[torch.Tensor]) -> None:
        if isinstance(value, torch.Tensor):
            found.extend(_overlap(value, other) for other in operands)

    if graph.is_writing:
        graph.values(disturb=look)
    return any(found)


def _overlap(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether two tensors share memory without being the same."""
    storage = written.untyped_storage()
    if storage.data_ptr() != read.untyped_storage().data_ptr() or written.dtype != read.dtype:
        return False
    places = torch.arange(storage.nbytes() // written.element_size())
    seen = [places.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (written, read)]
    if seen[0].shape == seen[1].shape and torch.equal(*seen):
        return False
    return bool(torch.isin(*seen).any())


def _is_refused_by_torch(graph: RandomGraph, error: str) -> bool:
    """Whether an error is from torch's fake tensors: their strides may differ from eager's."""
    with FakeTensorMode() as mode:
        try:
            graph.values([mode.from_tensor(tensor) for tensor in graph.tensors()])
        except (RuntimeError, ValueError) as refusal:
            reason = str(refusal).partition("\n")[0]
            return bool(reason) and reason in error
    return False


def _keeps_guards(graph: RandomGraph, other: RandomGraph, shapes: ShapeEnv) -> bool:
    """Whether another variant's sizes satisfy torch's assumptions from tracing."""
    values: dict[Any, int] = {}
    given = other.given()
    free = set()
    for symbol, sources in shapes.var_to_sources.items():
        found = _SOURCE.fullmatch(sources[0].name)
        if found is None:
            return False
        index, axis = int(found[1]), int(found[3])
        values[symbol] = getattr(given[index], found[2])()[axis]
        if found[2] == "size":
            free.add((index, axis))
    for index, (tensor, traced_with) in enumerate(zip(given, graph.given(), strict=True)):
        pairs = enumerate(zip(tensor.shape, traced_with.shape, strict=True))
        if any(new != old and (index, axis) not in free for axis, (new, old) in pairs):
            return False
    for symbol, size in values.items():
        fixed = shapes.replacements.get(symbol)
        if fixed is not None and fixed.xreplace(values) != size:
            return False
        bounds = shapes.var_to_range.get(symbol)
        if bounds is not None and not bounds.lower <= size <= bounds.upper:
            return False
    return all(bool(guard.expr.xreplace(values)) for guard in shapes.guards)

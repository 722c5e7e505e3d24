"""Measures the candidates for the graphs that are compiled while a session is open.

A graph without a record compiles as the default. With one, npu_compiler.backend takes the recorded
way; see `configured`. Records and their files are npu_compiler.tuning.store's.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openvino as ov
import torch
from torch import fx

import npu_runtime
from npu_compiler.capability import is_effectful, is_mutation
from npu_compiler.compilation import CompiledGraph
from npu_compiler.options import CompilerConfig
from npu_compiler.passes.write_in_place import written_inputs
from npu_compiler.recall import GraphMemory
from npu_compiler.tuning.candidates import CANDIDATES, Candidate, find_candidate
from npu_compiler.tuning.store import TuningRecord, TuningStore, tuning_key
from npu_runtime.public_calls import public_call

__all__ = [
    "TuningReport",
    "configured",
    "current_session",
    "make_graph",
    "open_session",
    "recorded_candidate",
    "tune",
]

_logger = logging.getLogger(__name__)

# Another way must win by this much: below it, two runs of one program differ as well.
_MARGIN = 0.97
_ROUNDS = 200
_TRIAL_ROUNDS = 2
_FAR = 3.0


@dataclass(frozen=True)
class TuningReport:
    """What a session measured.

    Attributes:
        records: one per graph.
        skipped: graph -> why it was not measured.
    """

    records: tuple[TuningRecord, ...]
    skipped: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{len(self.records)} graphs tuned, {len(self.skipped)} not"]
        for record in self.records:
            lines.append(f"{record.key[:12]}: {record.chosen}, {record.speedup:.2f}x the default")
            lines += [
                f"  {name:18} {time_us:10.1f} us  error {record.errors[name]:.1e}"
                for name, time_us in sorted(record.times_us.items(), key=lambda item: item[1])
            ]
            lines += [f"  {name:18} {reason}" for name, reason in record.refused.items()]
        lines += [f"{name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)


@dataclass
class Session:
    """An open session and what it found so far."""

    budget_s: float
    max_error: float
    records: list[TuningRecord] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


_session: Session | None = None
_lock = threading.Lock()


def current_session() -> Session | None:
    """Returns the open session, or None."""
    return _session


@contextlib.contextmanager
def open_session(*, budget_s: float, max_error: float) -> Iterator[Session]:
    """Tunes the inference graphs that are compiled inside the block, on any thread.

    Args:
        budget_s: seconds of measuring per graph; compiling comes on top.
        max_error: a way whose result differs more from the default's is not chosen.
    """
    global _session
    with _lock:
        before, _session = _session, Session(budget_s, max_error)
    try:
        yield _session
    finally:
        with _lock:
            _session = before


@public_call
def tune(
    model: Callable[..., Any],
    *args: Any,
    budget_s: float = 20.0,
    max_error: float = 1e-4,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> TuningReport:
    """Measures the ways to compile a model, and records the fastest for later compilations.

    Later means: `torch.compile(model, backend="npu")` with the same options and input sizes, in
    this process after torch._dynamo.reset(), or in any other that shares the cache directory.

    Args:
        model: module or function.
        args: its arguments; their sizes are those that are tuned for.
        budget_s: seconds of measuring per graph; compiling comes on top.
        max_error: a way whose result differs more from the default's, by the largest value, is not
            chosen. Half precision wants about 1e-2.
        options: as for torch.compile(options=...).
        kwargs: its keyword arguments.
    """
    from npu_compiler.backend import npu

    original = getattr(model, "_orig_mod", model)

    # A backend of its own, so that dynamo does not take what was compiled before.
    def tuned(graph_module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return npu(graph_module, inputs, options=options)

    with open_session(budget_s=budget_s, max_error=max_error) as session, torch.no_grad():
        torch.compile(original, backend=tuned)(*args, **kwargs)
    return TuningReport(tuple(session.records), session.skipped)


def make_graph(
    graph_module: fx.GraphModule,
    *,
    kind: str,
    static_positions: Sequence[int],
    config: CompilerConfig,
    memory: GraphMemory | None = None,
    rebuilds: int = 0,
) -> Any:
    """Returns what AOTAutograd calls: the graph as recorded, or one that measures first.

    Args:
        graph_module: as CompiledGraph takes it.
        kind: as CompiledGraph takes it.
        static_positions: as CompiledGraph takes them.
        config: as it was asked for.
        memory: where what comes of the graph is kept for other processes.
        rebuilds: as CompiledGraph takes them.
    """
    if kind == "inference" and current_session() is not None:
        return _MeasuredGraph(graph_module, static_positions, config)
    asked, (config, name) = config, configured(graph_module.graph, kind=kind, config=config)
    if memory is not None:
        memory.tuned_by(tuning_key(graph_module.graph, kind=kind, config=asked), name)
    return CompiledGraph(
        graph_module,
        kind=kind,
        static_positions=static_positions,
        config=config,
        tuned=name,
        on_ready=None if memory is None else memory.keep,
        rebuilds=rebuilds,
    )


def configured(
    graph: fx.Graph, *, kind: str, config: CompilerConfig
) -> tuple[CompilerConfig, str | None]:
    """Returns the configuration that was recorded as the fastest, and the candidate's name."""
    if kind != "inference" or not TuningStore(config.cache_dir).directory.is_dir():
        return config, None
    candidate = recorded_candidate(tuning_key(graph, kind=kind, config=config), config)
    if candidate is None:
        return config, None
    return candidate.applied(config, graph), candidate.name


def recorded_candidate(key: str, config: CompilerConfig) -> Candidate | None:
    """Returns the way of compiling that is recorded as the fastest, if the options leave it open.

    Args:
        key: of the graph, from tuning_key.
        config: as it was asked for.
    """
    record = TuningStore(config.cache_dir).read(key)
    candidate = find_candidate(record.chosen) if record is not None else None
    return candidate if candidate is not None and candidate.fits(config) else None


class _MeasuredGraph:
    """A graph that is measured at its first call, and then is the way that won."""

    def __init__(
        self, graph_module: fx.GraphModule, static_positions: Sequence[int], config: CompilerConfig
    ) -> None:
        self._boxed_call = True
        self._module = graph_module
        self._positions = static_positions
        self._config = config
        self._lock = threading.Lock()
        self._chosen: CompiledGraph | None = None

    def __call__(self, inputs: list[Any]) -> Any:
        with self._lock:
            if self._chosen is None:
                self._chosen = self._measure(inputs)
        return self._chosen(inputs)

    def _measure(self, inputs: list[Any]) -> CompiledGraph:
        session = current_session()
        reason = "the session is over" if session is None else _obstacle(self._module.graph)
        default = self._compiled(CANDIDATES[0])
        if session is None or reason is not None:
            if session is not None:
                session.skipped[default.name] = str(reason)
            return default
        graphs: dict[str, CompiledGraph] = {}
        errors: dict[str, float] = {}
        refused: dict[str, str] = {}
        expected = default(list(inputs))
        for candidate in CANDIDATES:
            if not candidate.fits(self._config):
                refused[candidate.name] = "the options decide otherwise"
                continue
            graph = default if candidate.name == "default" else self._compiled(candidate)
            error = _error(graph(list(inputs)), expected)
            if error > session.max_error:
                refused[candidate.name] = f"error {error:.1e}"
                continue
            graphs[candidate.name], errors[candidate.name] = graph, error
        times_us = _times_us(graphs, inputs, session.budget_s)
        fastest = min(times_us, key=times_us.__getitem__)
        is_better = times_us[fastest] < _MARGIN * times_us["default"]
        record = TuningRecord(
            key=tuning_key(self._module.graph, kind="inference", config=self._config),
            chosen=fastest if is_better else "default",
            times_us=times_us,
            errors=errors,
            refused=refused,
            device=npu_runtime.device_info().full_name,
            openvino=ov.__version__,
        )
        self._keep(record)
        session.records.append(record)
        return graphs[record.chosen]

    def _keep(self, record: TuningRecord) -> None:
        store = TuningStore(self._config.cache_dir)
        try:
            store.write(record)
        except OSError as failure:
            _logger.warning("tuning: cannot keep a record in %s (%s)", store.directory, failure)

    def _compiled(self, candidate: Candidate) -> CompiledGraph:
        # Each way has a graph of its own, since passes rewrite it.
        copy = fx.Graph()
        result = copy.graph_copy(self._module.graph, {}, return_output_node=True)
        assert isinstance(result, tuple)
        copy.output(result[0]).meta.update(result[1].meta)
        return CompiledGraph(
            fx.GraphModule(self._module, copy),
            kind="inference",
            static_positions=self._positions,
            config=candidate.applied(self._config, self._module.graph),
            tuned=candidate.name,
        )


def _obstacle(graph: fx.Graph) -> str | None:
    """Why a graph cannot be called many times on the same inputs."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if is_mutation(node) or any(True for _ in written_inputs(node)):
            return f"{node.name} writes to an input"
        if is_effectful(node):
            return f"{node.name} draws random numbers or has another effect"
    return None


def _times_us(
    graphs: Mapping[str, CompiledGraph], inputs: list[Any], budget_s: float
) -> dict[str, float]:
    """The shortest time of a call of each, taken in turns, so that all meet the same machine.

    The order changes from round to round: host kernels leave threads that spin for milliseconds,
    and what always came after them would look slow.
    """
    best = dict.fromkeys(graphs, float("inf"))
    order = list(graphs.items())
    shuffle = random.Random(0).shuffle  # no secret
    started = time.perf_counter()
    for round_index in itertools.count():
        shuffle(order)
        for name, graph in order:
            # The way before left its caches and spinning threads: one call to settle.
            graph(list(inputs))
            before = time.perf_counter_ns()
            graph(list(inputs))
            best[name] = min(best[name], (time.perf_counter_ns() - before) / 1e3)
        if round_index == _TRIAL_ROUNDS:
            # What is far behind would take the time in which the others are told apart.
            near = _FAR * min(best.values())
            order = [(name, graph) for name, graph in order if best[name] <= near]
        is_late = time.perf_counter() - started > budget_s
        if round_index + 1 >= _ROUNDS or (is_late and round_index > 0):
            return best
    raise AssertionError("counting does not end")


def _error(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference by the largest value, over all results."""
    errors = [0.0]
    for left, right in zip(found, expected, strict=True):
        if not isinstance(left, torch.Tensor):
            continue
        a, b = left.detach().cpu().double(), right.detach().cpu().double()
        if not torch.equal(a.isfinite(), b.isfinite()):
            return float("inf")
        is_finite = b.isfinite()
        if bool(is_finite.any()):
            scale = max(float(b[is_finite].abs().max()), 1e-30)
            errors.append(float((a[is_finite] - b[is_finite]).abs().max()) / scale)
    return max(errors)

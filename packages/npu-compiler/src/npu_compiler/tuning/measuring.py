"""Measurement of candidates on the device, or estimates for an absent NPU."""

from __future__ import annotations

import itertools
import logging
import random
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import openvino as ov
import torch
from torch import fx

import npu_runtime
from npu_compiler.graph.nodes import copy_graph, is_effectful, is_mutation, written_inputs
from npu_compiler.graph_compiler.compiled_graph import CompiledGraph
from npu_compiler.options import CompilerConfig
from npu_compiler.tuning.candidates import CANDIDATES, Candidate
from npu_compiler.tuning.estimation import Estimator, NoEstimateError
from npu_compiler.tuning.run import TuningRun, current_run
from npu_compiler.tuning.store import TuningRecord, TuningStore, tuning_key

__all__ = ["MeasuredGraph"]


_logger = logging.getLogger(__name__)

# A candidate must win by this margin; two runs of one program differ by less.
_MARGIN = 0.97
_ROUNDS = 200
_TRIAL_ROUNDS = 2
_FAR = 3.0
_DECIDED = "the options decide otherwise"


class MeasuredGraph:
    """A graph that measures candidates at its first call, and then runs the fastest."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        static_positions: Sequence[int],
        config: CompilerConfig,
        run: TuningRun | None = None,
    ) -> None:
        """Takes a graph as CompiledGraph does, and its tuning run.

        By default the run that is open at the first call.
        """
        self._boxed_call = True
        self._module = graph_module
        self._positions = static_positions
        self._config = config
        self._lock = threading.Lock()
        self._chosen: CompiledGraph | None = None
        self._own_run = run

    def __call__(self, inputs: list[Any]) -> Any:
        """Runs the graph on a list of inputs, which is emptied."""
        with self._lock:
            if self._chosen is None:
                self._chosen = self._measure(inputs)
        return self._chosen(inputs)

    def _measure(self, inputs: list[Any]) -> CompiledGraph:
        session = self._own_run or current_run()
        reason = "the session is over" if session is None else _obstacle(self._module.graph)
        default = self._compiled(CANDIDATES[0])
        if session is None or reason is not None:
            if session is not None:
                session.skipped[default.name] = str(reason)
            return default
        if session.estimator is not None:
            reason = self._estimate(session, session.estimator, inputs)
            if reason is not None:
                session.skipped[default.name] = reason
            return default  # estimates never decide which candidate runs
        graphs: dict[str, CompiledGraph] = {}
        errors: dict[str, float] = {}
        refused: dict[str, str] = {}
        expected = default(list(inputs))
        for candidate in CANDIDATES:
            if not candidate.fits(self._config):
                refused[candidate.name] = _DECIDED
                continue
            graph = default if candidate.name == "default" else self._compiled(candidate)
            error = _error(graph(list(inputs)), expected)
            if error > session.max_error:
                refused[candidate.name] = f"error {error:.1e}"
                continue
            graphs[candidate.name], errors[candidate.name] = graph, error
        times_us = _times_us(graphs, inputs, session.budget_s)
        record = TuningRecord(
            key=tuning_key(self._module.graph, kind="inference", config=self._config),
            chosen=_fastest(times_us),
            times_us=times_us,
            errors=errors,
            refused=refused,
            device=npu_runtime.device_info().full_name,
            openvino=ov.__version__,
        )
        self._keep(record)
        session.records.append(record)
        return graphs[record.chosen]

    def _estimate(self, session: TuningRun, estimator: Estimator, inputs: list[Any]) -> str | None:
        """Ranks the candidates by estimates; returns the reason if it cannot, or None.

        The current device computes their results. Programs are built in an empty cache, because a
        cached program no longer has the lowered model.
        """
        times_us: dict[str, float] = {}
        errors: dict[str, float] = {}
        refused: dict[str, str] = {}
        expected: Any = None
        for candidate in CANDIDATES:
            if not candidate.fits(self._config):
                refused[candidate.name] = _DECIDED
                continue
            if not candidate.is_of_the_program:
                refused[candidate.name] = "it is an option of this device, not of an NPU"
                continue
            with tempfile.TemporaryDirectory(prefix="npu-estimate-") as place:
                config = replace(self._config, cache_dir=place)
                graph = self._compiled(candidate, config)
                try:
                    results, time_us = estimator.estimate_us(partial(graph, list(inputs)))
                except NoEstimateError as reason:
                    refused[candidate.name] = str(reason)
                    continue
            expected = results if expected is None else expected
            error = _error(results, expected)
            if error > session.max_error:
                refused[candidate.name] = f"error {error:.1e}"
                continue
            times_us[candidate.name], errors[candidate.name] = time_us, error
        if "default" not in times_us:
            return refused["default"]
        target = estimator.target
        record = TuningRecord(
            key=tuning_key(
                self._module.graph, kind="inference", config=self._config, target=target
            ),
            chosen=_fastest(times_us),
            times_us=times_us,
            errors=errors,
            refused=refused,
            device=target,
            openvino=ov.__version__,
            estimated_by=estimator.version,
        )
        self._keep(record)
        session.records.append(record)
        return None

    def _keep(self, record: TuningRecord) -> None:
        store = TuningStore(self._config.cache_dir)
        try:
            store.write(record)
        except OSError as failure:
            _logger.warning("tuning: cannot keep a record in %s (%s)", store.directory, failure)

    def _compiled(
        self, candidate: Candidate, config: CompilerConfig | None = None
    ) -> CompiledGraph:
        # Each candidate has a copy of the graph, because passes rewrite it.
        return CompiledGraph(
            copy_graph(self._module),
            kind="inference",
            static_positions=self._positions,
            config=candidate.applied(config or self._config, self._module.graph),
            tuned=candidate.name,
        )


def _fastest(times_us: Mapping[str, float]) -> str:
    """Returns the fastest candidate, or the default if no other is faster by the margin."""
    fastest = min(times_us, key=times_us.__getitem__)
    return fastest if times_us[fastest] < _MARGIN * times_us["default"] else "default"


def _obstacle(graph: fx.Graph) -> str | None:
    """Returns why a graph cannot be called many times on the same inputs, or None."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if is_mutation(node) or any(True for _ in written_inputs(node)):
            return f"{node.name} writes to an input"
        if is_effectful(node):
            return f"{node.name} draws random numbers or has another side effect"
    return None


def _times_us(
    graphs: Mapping[str, CompiledGraph], inputs: list[Any], budget_s: float
) -> dict[str, float]:
    """Returns the shortest call time of each; calls alternate so that all see the same load.

    The order changes in each round, because host kernels leave threads spinning for milliseconds,
    which slow the next call.
    """
    best = dict.fromkeys(graphs, float("inf"))
    order = list(graphs.items())
    shuffle = random.Random(0).shuffle  # not for secrets
    started = time.perf_counter()
    for round_index in itertools.count():
        shuffle(order)
        for name, graph in order:
            # One warm-up call: the previous candidate left its caches and spinning threads.
            graph(list(inputs))
            before = time.perf_counter_ns()
            graph(list(inputs))
            best[name] = min(best[name], (time.perf_counter_ns() - before) / 1e3)
        if round_index == _TRIAL_ROUNDS:
            # Slow candidates would use up the time needed to compare the others.
            near = _FAR * min(best.values())
            order = [(name, graph) for name, graph in order if best[name] <= near]
        is_late = time.perf_counter() - started > budget_s
        if round_index + 1 >= _ROUNDS or (is_late and round_index > 0):
            return best
    raise AssertionError("counting does not end")


def _error(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Returns the largest difference, divided by the largest value, over all results."""
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

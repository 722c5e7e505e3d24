"""Measurement of candidates on the device, or estimates for an NPU that is not here."""

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

# Another way must win by this much: below it, two runs of one program differ as well.
_MARGIN = 0.97
_ROUNDS = 200
_TRIAL_ROUNDS = 2
_FAR = 3.0
_DECIDED = "the options decide otherwise"


class MeasuredGraph:
    """A graph that is measured at its first call, and then is the way that won."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        static_positions: Sequence[int],
        config: CompilerConfig,
        run: TuningRun | None = None,
    ) -> None:
        """Takes a graph as CompiledGraph does, and the run that it belongs to.

        Without one it belongs to the run that is open at the first call.
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
            return default  # an estimate never decides what is run
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
        """Ranks the candidates by estimates; returns why it cannot, or None.

        The device that serves computes their results. Programs are made anew, in an empty cache,
        because a cached program no longer has the model that was lowered.
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
                refused[candidate.name] = "it is a choice of the device that serves, not an NPU's"
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
        # Each way has a graph of its own, since passes rewrite it.
        return CompiledGraph(
            copy_graph(self._module),
            kind="inference",
            static_positions=self._positions,
            config=candidate.applied(config or self._config, self._module.graph),
            tuned=candidate.name,
        )


def _fastest(times_us: Mapping[str, float]) -> str:
    """The fastest candidate, or the default if no other is faster by the margin."""
    fastest = min(times_us, key=times_us.__getitem__)
    return fastest if times_us[fastest] < _MARGIN * times_us["default"] else "default"


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

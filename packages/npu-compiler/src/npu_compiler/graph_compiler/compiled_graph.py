"""A captured graph, compiled at its first call, and again when its weights change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import fx

from npu_command.interpreter import collector_paused, switching_often
from npu_compiler.errors import IndexRangeError, LoweringError, PassError, WrongResultError
from npu_compiler.graph.nodes import (
    add_random_values,
    copy_graph,
    is_symbolic,
    op_name,
    written_inputs,
)
from npu_compiler.graph.origins import kept_source_name, mark_kept_float32, node_place, source_line
from npu_compiler.graph_compiler.assembly import Assembled, assemble
from npu_compiler.graph_compiler.building import RefusedNode, count_calls
from npu_compiler.graph_compiler.debug import GraphDump
from npu_compiler.graph_compiler.failures import is_failure, report_failure
from npu_compiler.graph_compiler.host_threads import limit_spinning
from npu_compiler.graph_compiler.partition import Plan, make_plan
from npu_compiler.graph_compiler.records import EagerNode, GraphRecord, next_graph_name, publish
from npu_compiler.graph_compiler.targets import CAPTURED
from npu_compiler.lowering.capability import HOST_DUTIES, HOST_IS_BETTER, takes_from_host
from npu_compiler.lowering.integer_widths import LARGEST_NUMBER, bits_seen, lone_numbers
from npu_compiler.lowering.registry import functional_forms
from npu_compiler.options import CompilerConfig
from npu_compiler.passes.infra.pass_base import Facts, PassResult
from npu_compiler.passes.pipeline import run_passes
from npu_compiler.programs.index_checks import NARROW
from npu_compiler.verification.comparison import WrongResults
from npu_compiler.verification.graph_check import GraphTrial, Outcome, can_repeat
from npu_compiler.verification.input_classes import InputClasses
from npu_compiler.verification.program_check import ProgramTrial
from npu_compiler.verification.result import DIFFERED, Verdict
from npu_runtime import FrozenTensors, observe
from npu_runtime.npu import current_device, is_current_stream_capturing, set_device
from npu_runtime.npu.graphs import is_capture_following, outside_capture

__all__ = ["CompiledGraph"]

_logger = logging.getLogger(__name__)

# After this many changes, a weight is trained or swapped, and becomes an input.
_REBUILDS = 2
# Maximum number of replacements of wrong programs, which are verified as well.
_TRIALS = 4
# Bytes of weights above which a graph is compiled ahead of its first call.
_AHEAD_BYTES = 1 << 22


class CompiledGraph:
    """A compiled graph for AOTAutograd: takes one list of inputs, returns a sequence of outputs."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        *,
        kind: str,
        static_positions: Sequence[int],
        config: CompilerConfig,
        tuned: str | None = None,
        on_ready: Callable[[GraphRecord, Assembled], None] | None = None,
        rebuilds: int = 0,
        auto_kept: str = "",
    ) -> None:
        """Takes a graph; the first call compiles it.

        Args:
            graph_module: functional, with fake values in `meta["val"]`.
            kind: inference, forward or backward.
            static_positions: inputs that are weights and buffers. In inference, those that the
                graph does not write to are frozen.
            config: see CompilerConfig.
            tuned: name of the candidate that was fastest in tuning.
            on_ready: called with the result of the first compilation.
            rebuilds: number of earlier compilations, with other weights.
            auto_kept: see GraphRecord.
        """
        # AOTAutograd's flag for the calling convention with one list. It is on the object, because
        # the wrapper of backward graphs copies attributes of the object, not of the class.
        self._boxed_call = True
        self._module = graph_module
        self._placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        self._kind = kind
        if kind != "inference":
            config = replace(config, nan="propagate")  # a loss must show divergence of training
        self._config = config
        self._name = next_graph_name()
        self._tuned = tuned
        self._auto_kept = auto_kept
        self._on_ready = on_ready
        self._dump = GraphDump(self._name)
        self._lock = threading.Lock()
        self._run: Callable[..., Any] | None = None
        self._frozen: FrozenTensors | None = None
        self._rebuilds = rebuilds
        self._seen: dict[str, int] = {}
        self._is_ahead = False  # on the thread of compile_ahead
        is_frozen_kind = kind == "inference" and config.freeze and not config.training
        self._freezable = self._freezable_positions(static_positions) if is_frozen_kind else []
        add_random_values(graph_module.graph)
        self._captured = copy_graph(graph_module)
        self._original = None
        if config.verify != "off" and config.compression is None and can_repeat(graph_module):
            self._original = self._captured
        self._writes = any(True for node in graph_module.graph.nodes for _ in written_inputs(node))
        self._trial: GraphTrial | None = None
        self._refused: dict[str, str] = {}
        self._no_kernels: str | None = None
        self._kernel_programs: frozenset[str] = frozenset()
        # Both are known once everything is verified; see Assembled.
        self.is_one_program = False
        self.shortcut: Callable[[tuple[Any, ...]], Any] | None = None
        self._made: tuple[Plan, Assembled] | None = None
        self._passes: tuple[PassResult, ...] = ()
        self._failure = ""
        # Programs assume that symbolic numbers are not larger than sizes.
        self._numbers = lone_numbers(self._placeholders)
        self._retrials: tuple[ProgramTrial, ...] = ()
        self.classes: InputClasses | None = None
        try:
            self._passes = self._rewrite()
        except Exception as failure:  # noqa: BLE001  # any error is a defect of the passes
            self._give_up(failure)

    def __call__(self, inputs: list[Any]) -> Any:
        """Runs the graph on a list of inputs, and clears the list."""
        if self._numbers and any(abs(inputs[p]) > LARGEST_NUMBER for p in self._numbers):
            arguments = tuple(inputs)
            inputs.clear()
            return self._captured(*arguments)
        # In this order, because another thread may compile meanwhile, and sets these in reverse.
        is_untried = self._trial is not None
        frozen = self._frozen
        run = self._run
        if self._kernel_programs and is_current_stream_capturing():
            self._drop_kernels()
            run = None
        if run is None or (frozen is not None and not frozen.is_current(inputs)):
            with self._lock:
                run = self._make_ready(inputs)
                is_untried = self._trial is not None
        arguments = tuple(inputs)
        inputs.clear()
        try:
            if is_untried and not is_current_stream_capturing():
                return self._first_tried(arguments)
            classes = self.classes
            if classes is not None:
                classes.left -= 1
                if classes.left < 0 and not is_current_stream_capturing():
                    return self._looked_at(classes, run, arguments)
            return run(*arguments)
        except IndexRangeError as error:
            return self._widened(arguments, error)

    def compile_ahead(self, inputs: Sequence[Any]) -> None:
        """Compiles on another thread for the inputs of the first call, if that takes long.

        Dynamo builds its guards meanwhile. The first call waits for the thread and compiles again
        if a weight changed or compiling failed, so that it reports the failure.

        Args:
            inputs: tensors on cpu.
        """
        if sum(inputs[position].nbytes for position in self._freezable) >= _AHEAD_BYTES:
            arguments = (tuple(inputs), current_device())
            threading.Thread(target=self._compile_ahead, args=arguments).start()

    def _compile_ahead(self, inputs: Sequence[Any], device_index: int) -> None:
        with self._lock, torch.no_grad(), collector_paused(), switching_often():
            if self._run is not None:
                return
            self._is_ahead = True
            try:
                set_device(device_index)  # of this thread
                self._compile(inputs)
            except Exception as failure:  # noqa: BLE001  # the first call meets and reports it
                _logger.debug("%s: compiling ahead of the first call: %r", self._name, failure)
            finally:
                self._is_ahead = False

    def _first_tried(self, arguments: tuple[Any, ...]) -> Any:
        started = time.perf_counter()
        results = self._tried(arguments)
        if self.classes is not None:
            self.classes.compared(time.perf_counter() - started)
        return results

    def _looked_at(
        self, classes: InputClasses, run: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        """Runs the graph; verifies it again if its inputs are of a new class."""
        started = time.perf_counter()
        if classes.is_due(arguments):
            with self._lock:
                for program in self._retrials:
                    program.renew()
                if self._retrials and self._trial is None:
                    self._trial = GraphTrial(self._original, self._retrials)
            results = self._tried(arguments)
            classes.compared(time.perf_counter() - started)
            return results
        looked = time.perf_counter()
        results = run(*arguments)
        classes.spent(look_s=looked - started, run_s=time.perf_counter() - looked)
        return results

    def _drop_kernels(self) -> None:
        """Compiles programs of the device from now on, which a captured graph can hold."""
        with self._lock:
            if self._kernel_programs:
                self._no_kernels = CAPTURED
                self._forget()

    def _widened(self, arguments: tuple[Any, ...], error: IndexRangeError) -> Any:
        """Runs the graph, recompiled for larger integers than in earlier calls.

        Raises IndexRangeError if they are not larger, or if inputs may have been written already.
        """
        seen = bits_seen(self._placeholders, arguments)
        is_larger = any(bits > self._seen.get(name, 0) for name, bits in seen.items())
        if NARROW not in str(error) or not is_larger or self._writes:
            raise error
        with self._lock:
            self._forget()
            run = self._make_ready(arguments)
        return self._tried(arguments) if self._trial is not None else run(*arguments)

    @property
    def name(self) -> str:
        """Name of the graph in reports and traces."""
        return self._name

    def _rewrite(self) -> tuple[PassResult, ...]:
        facts = Facts(
            kind=self._kind,
            constants=frozenset(self._placeholders[p].name for p in self._freezable),
            kept_ops=frozenset(self._config.fallback_ops),
            for_device=takes_from_host(self._config),
            functional_forms=functional_forms() if takes_from_host(self._config) else {},
        )
        graph = self._module.graph
        mark_kept_float32(graph, tuple(self._config.keep_float32))
        self._dump.write_stage("capture", graph)
        with observe.span("compile", "passes", graph=self._name):
            results = run_passes(
                graph,
                facts,
                enabled=self._config.enabled_passes,
                disabled=self._config.disabled_passes,
                watch=lambda one, _: self._dump.watch(one, graph),
            )
        self._dump.finish_passes(graph)
        self._module.recompile()
        return results

    def _freezable_positions(self, static_positions: Sequence[int]) -> list[int]:
        written = {found for node in self._module.graph.nodes for found in written_inputs(node)}
        return [
            position
            for position in static_positions
            if position < len(self._placeholders)
            and self._placeholders[position] not in written
            and isinstance(self._placeholders[position].meta.get("val"), torch.Tensor)
        ]

    def _make_ready(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles, also during a capture, which then records the weights in the programs."""
        if is_capture_following() and self._freezable:
            # Programs of a graph with weights as inputs hold no weights, so they stay valid.
            self._freezable, self._on_ready = [], None
            self._run = self._frozen = None
        if is_current_stream_capturing():
            self._no_kernels = CAPTURED
        with outside_capture(), collector_paused():
            run = self._compile(inputs)
        if self._frozen is not None:
            self._frozen.is_current(inputs)
        return run

    def _compile(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self._run is not None:
            changed = self._frozen.changed(inputs) if self._frozen is not None else []
            if not changed:  # another thread has finished first
                return self._run
            self._run, self.shortcut, self.is_one_program = None, None, False
            self._rebuilds += 1
            if self._rebuilds > _REBUILDS:
                self._freezable = [p for p in self._freezable if p not in set(changed)]
                _logger.info(
                    "%s: %d weights keep changing; they are inputs from now on",
                    self._name,
                    len(changed),
                )
        # Inference tensors have no version counter.
        frozen = {
            position: inputs[position]
            for position in self._freezable
            if not inputs[position].is_inference()
        }
        if self._config.check_indices:
            for name, bits in bits_seen(self._placeholders, inputs).items():
                self._seen[name] = max(bits, self._seen.get(name, 0))
        # Before any weight is read.
        watched = self._watch(frozen)
        if self._kind != "inference":
            limit_spinning()  # gradients of weights are computed by torch between the programs
        with observe.span("compile", "graph", graph=self._name, kind=self._kind):
            plan, assembled = self._assembled(
                {self._placeholders[p].name: tensor for p, tensor in frozen.items()}
            )
        constants = assembled.constant_inputs
        used = {p: one for p, one in frozen.items() if self._placeholders[p].name in constants}
        if watched is not None and len(used) < len(frozen) and not watched.changed(inputs):
            watched = self._watch(used)
        self._frozen = watched
        self._made = (plan, assembled)
        self._retrials = tuple(one.trial for one in assembled.built if one.trial is not None)
        trials = [one.trial for one in assembled.built if one.trial and not one.is_judged]
        if trials:
            self._trial = GraphTrial(self._original, trials)
        self.classes = self._input_classes([*used], inputs, is_compared=bool(trials))
        self._kernel_programs = frozenset(
            one.record.name for one in assembled.built if one.record.target == "kernels"
        )
        self._run = assembled.run
        if not trials:
            self._settle()
            self._tell()
        return assembled.run

    def _input_classes(
        self, frozen: Sequence[int], inputs: Sequence[Any], *, is_compared: bool
    ) -> InputClasses | None:
        """Returns the input classes to watch in later calls; None if verification is over."""
        if not self._retrials or self._original is None or self._config.verify != "first":
            return None
        values = {
            position: node.meta.get("val")
            for position, node in enumerate(self._placeholders)
            if position not in frozen
        }
        classes = InputClasses(values)
        if is_compared:
            classes.note(inputs)
        return classes

    def _watch(self, weights: Mapping[int, torch.Tensor]) -> FrozenTensors | None:
        if not weights:
            return None
        names = [kept_source_name(self._placeholders[position]) for position in weights]
        watch = FrozenTensors if self._config.check_weights else FrozenTensors.unwatched
        return watch([*weights], [*weights.values()], names)

    def _tell(self, verdicts: Mapping[str, Verdict] | None = None) -> None:
        """Reports the verified compilation, and drops its intermediate state."""
        if self._made is None:
            return
        (plan, assembled), self._made = self._made, None
        record = self._record(plan, assembled, verdicts or {})
        self._dump.write_record(plan, record)
        publish(record)
        if self._on_ready is not None:
            self._on_ready(record, assembled)
            self._on_ready = None

    def _tried(self, arguments: tuple[Any, ...]) -> Any:
        """Runs and verifies unverified programs."""
        results: Any = None
        with self._lock:
            for _ in range(_TRIALS):
                trial = self._trial
                if trial is None:
                    break
                with observe.span("compile", "verify", graph=self._name):
                    outcome = trial.run(self._current, arguments)
                results = outcome.results
                is_settled = self._conclude(trial, outcome, arguments)
                if is_settled or trial.writes:
                    return results
            else:
                # The replacements of wrong programs are wrong as well; the results are torch's.
                self._run_eagerly("its programs are wrong in every partition", arguments)
                return results
            return self._current(*arguments)

    def _current(self, *arguments: Any) -> Any:
        assert self._run is not None
        return self._run(*arguments)

    def _conclude(self, trial: GraphTrial, outcome: Outcome, arguments: tuple[Any, ...]) -> bool:
        """Records a trial; returns False if wrong programs were replaced."""
        verdicts = {one.name: one.verdict for one in trial.programs if one.verdict is not None}
        report = WrongResults(
            self._name,
            verdicts,
            replaceable=self._kernel_programs,
            difference=outcome.difference,
            is_unsteady=outcome.is_unsteady,
        )
        report.tell(is_strict=self._config.strict)
        if outcome.difference is not None and not outcome.is_unsteady:
            self._run_eagerly(f"the compiled graph {DIFFERED}: {outcome.difference}", arguments)
            return True
        if not report.wrong:
            if self._config.verify == "first":
                self._trial = None
                self._settle()
            self._tell(verdicts)
            return True
        for program in trial.programs:
            if program.name in report.wrong:
                reason = str(verdicts[program.name])
                if program.name in self._kernel_programs:
                    self._no_kernels = f"a program of kernels {reason}"
                    continue
                self._refused.update((node.name, reason) for node in program.nodes)
        self._forget()
        self._compile(arguments)
        return False

    def _settle(self) -> None:
        """Ends verification."""
        if self._made is None:
            return
        _, assembled = self._made
        self.is_one_program = assembled.ports is not None
        if assembled.shortcut is not None:
            self.shortcut = assembled.shortcut(self._frozen and self._frozen.is_current)

    def _forget(self) -> None:
        """Drops the compilation: programs first, since a call reads the trial first."""
        self._run = self.shortcut = None
        self._kernel_programs, self.is_one_program = frozenset(), False
        self._frozen = self._made = self._trial = self.classes = None

    def _run_eagerly(self, reason: str, arguments: tuple[Any, ...]) -> None:
        """Stops compiling this graph."""
        # Not the graph after passes, which may be the cause.
        self._module = self._captured
        nodes = self._module.graph.nodes
        self._refused = {node.name: reason for node in nodes if node.op == "call_function"}
        self._forget()
        self._compile(arguments)

    def _give_up(self, failure: Exception) -> None:
        """Runs the captured graph eagerly after an internal failure of the compiler.

        Raises:
            CompilerError: under strict, or if the user must fix it.
        """
        if not is_failure(failure):
            raise failure
        is_of_others = isinstance(failure, PassError) and failure.code == "pass-failed"
        report_failure(
            self._name,
            failure,
            instead="it runs eagerly",
            is_strict=self._config.strict,
            advice="Its author can fix it." if is_of_others else "Please report it.",
        )
        self._failure = f"compiling failed with {type(failure).__name__}"
        self._module = self._captured

    def _assembled(self, constants: dict[str, torch.Tensor]) -> tuple[Plan, Assembled]:
        """Returns the compiled graph, or an eager one if compilation fails."""
        if not self._failure:
            try:
                return self._assemble(constants)
            except Exception as failure:  # any error is a defect of the compiler
                if self._is_ahead:
                    raise
                self._give_up(failure)
        calls = [node for node in self._module.graph.nodes if node.op == "call_function"]
        eager = {node: self._failure for node in calls if not is_symbolic(node)}
        return Plan((), eager, {}), Assembled(self._module.forward, (), frozenset())

    def _assemble(self, constants: dict[str, torch.Tensor]) -> tuple[Plan, Assembled]:
        refused = dict(self._refused)
        home = self._home()
        while True:
            with observe.span("compile", "partition", graph=self._name):
                plan = make_plan(
                    self._module.graph, config=self._config, refused=refused, seen=self._seen
                )
            fallbacks = [one for one in _eager_calls(plan) if one[1] != HOST_IS_BETTER]
            if self._config.strict and fallbacks:
                _refuse_eager(*fallbacks[0])
            if not plan.segments:
                return plan, Assembled(self._module.forward, (), frozenset())
            try:
                assembled = assemble(
                    self._module,
                    plan,
                    constants=constants,
                    config=self._config,
                    home=home,
                    exact_strides=self._kind != "inference",
                    name=self._name,
                    kind=self._kind,
                    no_kernels=self._no_kernels,
                )
            except RefusedNode as refusal:
                if refused.keys() >= refusal.reasons.keys():
                    raise LoweringError(
                        f"{self._name}: a refused call must leave its program, got "
                        f"{', '.join(sorted(refusal.reasons))} again: {refusal}. List its op "
                        "in fallback_ops, and please report this.",
                        "refused-again",
                    ) from refusal
                refused.update(refusal.reasons)
                continue
            return plan, assembled

    def _home(self) -> str:
        """Returns the device type of the graph's tensors: npu if any is on it, ignoring scalars."""
        nodes = self._placeholders or list(self._module.graph.nodes)
        values = [node.meta.get("val") for node in nodes]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if not tensors:
            every = [node.meta.get("val") for node in self._module.graph.nodes]
            tensors = [value for value in every if isinstance(value, torch.Tensor)]
        kinds = {tensor.device.type for tensor in tensors}
        return "npu" if "npu" in kinds else "cpu"

    def _record(
        self, plan: Plan, assembled: Assembled, verdicts: Mapping[str, Verdict]
    ) -> GraphRecord:
        eager = tuple(
            EagerNode(node.name, op_name(node.target), reason, source_line(node))
            for node, reason in _eager_calls(plan)
        )
        programs = tuple(
            replace(program, verdict=verdicts.get(program.name, program.verdict))
            for program in assembled.programs
        )
        lowered = sum(program.node_count for program in programs)
        return GraphRecord(
            name=self._name,
            kind=self._kind,
            node_count=lowered + len(eager),
            programs=programs,
            eager=eager,
            frozen_count=len(assembled.constant_inputs),
            rebuilds=self._rebuilds,
            passes=tuple(result for result in self._passes if result.count),
            tuned=self._tuned,
            auto_kept=self._auto_kept,
        )


def _eager_calls(plan: Plan) -> list[tuple[fx.Node, str]]:
    """Returns the calls without a program, with reasons."""
    return [
        (node, reason)
        for node, reason in plan.eager.items()
        if reason not in HOST_DUTIES and count_calls([node])
    ]


def _refuse_eager(node: fx.Node, reason: str) -> NoReturn:
    """Raises [wrong-result], [no-converter] or [cannot-lower] if a call would run eagerly."""
    call = f"{op_name(node.target)} ({node_place(node)})"
    shapes = [
        tuple(value.shape)
        for source in node.all_input_nodes
        if isinstance(value := source.meta.get("val"), torch.Tensor)
    ]
    if DIFFERED in reason:
        raise WrongResultError(
            f"{call} of inputs {shapes}: its program {reason}. "
            "Compile without strict, so that it runs eagerly.",
            code="wrong-result",
        )
    code = "no-converter" if reason.startswith("no converter") else "cannot-lower"
    raise LoweringError(
        f"Cannot lower {call} of inputs {shapes}: {reason}. "
        "Register a converter, or compile without strict so that it runs eagerly.",
        code,
        node.name,
        reason,
    )

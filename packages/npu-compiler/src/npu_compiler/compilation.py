"""One captured graph, compiled at its first call, when weights have values, and when they change.

Capturing is npu_compiler.backend's work, planning npu_compiler.partition's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from npu_compiler.assembly import Assembled, assemble
from npu_compiler.building import RefusedNode, count_calls
from npu_compiler.capability import HOST_DUTIES
from npu_compiler.debug import GraphDump
from npu_compiler.errors import LoweringError
from npu_compiler.lowering import op_name, source_line
from npu_compiler.options import CompilerConfig
from npu_compiler.partition import Plan, make_plan
from npu_compiler.passes.base import Facts, PassResult
from npu_compiler.passes.write_in_place import written_inputs
from npu_compiler.pipeline import run_passes
from npu_compiler.records import EagerNode, GraphRecord, next_graph_name, publish
from npu_runtime import FrozenTensors, observe

__all__ = ["CompiledGraph"]

_logger = logging.getLogger(__name__)

# A weight that changed so often is being trained or swapped: from then on it is an input.
_REBUILDS = 2


class CompiledGraph:
    """A graph as AOTAutograd calls it: with one list of inputs, returning a sequence of outputs."""

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
    ) -> None:
        """Takes a graph; nothing is compiled before the first call.

        Args:
            graph_module: functional, with fake values in `meta["val"]`.
            kind: inference, forward or backward.
            static_positions: inputs that are weights and buffers. Those that the graph does not
                write to are frozen, in inference.
            config: see CompilerConfig.
            tuned: name of the candidate that was measured as the fastest.
            on_ready: told what came of it, when it is compiled for the first time.
            rebuilds: how often the graph was made ready before, with other weights.
        """
        # AOTAutograd's sign for the calling convention with one list. It stands on the object:
        # the wrapper around backward graphs copies that and not the class.
        self._boxed_call = True
        self._module = graph_module
        self._placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        self._kind = kind
        self._config = config
        self._name = next_graph_name()
        self._tuned = tuned
        self._on_ready = on_ready
        self._dump = GraphDump(self._name)
        self._lock = threading.Lock()
        self._run: Callable[..., Any] | None = None
        self._frozen: FrozenTensors | None = None
        self._rebuilds = rebuilds
        is_frozen_kind = kind == "inference" and config.freeze and not config.training
        self._freezable = self._freezable_positions(static_positions) if is_frozen_kind else []
        self._passes = self._rewrite()

    def __call__(self, inputs: list[Any]) -> Any:
        """Runs the graph on a list of inputs, which is emptied."""
        run = self._run
        if run is None or (self._frozen is not None and not self._frozen.is_current(inputs)):
            with self._lock:
                run = self._compile(inputs)
        arguments = tuple(inputs)
        inputs.clear()
        return run(*arguments)

    @property
    def name(self) -> str:
        """Of the graph, as in reports and traces."""
        return self._name

    def _rewrite(self) -> tuple[PassResult, ...]:
        facts = Facts(
            kind=self._kind,
            constants=frozenset(self._placeholders[p].name for p in self._freezable),
            kept_ops=frozenset(self._config.fallback_ops),
        )
        graph = self._module.graph
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

    def _compile(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self._run is not None:
            assert self._frozen is not None
            changed = self._frozen.changed(inputs)
            if not changed:
                return self._run
            self._rebuilds += 1
            if self._rebuilds > _REBUILDS:
                self._freezable = [p for p in self._freezable if p not in set(changed)]
                _logger.info(
                    "%s: %d weights keep changing; they are inputs from now on",
                    self._name,
                    len(changed),
                )
        # An inference tensor has no version to watch.
        frozen = {
            position: inputs[position]
            for position in self._freezable
            if not inputs[position].is_inference()
        }
        with observe.span("compile", "graph", graph=self._name, kind=self._kind):
            plan, assembled = self._assemble(
                {self._placeholders[p].name: tensor for p, tensor in frozen.items()}
            )
        used = [p for p in frozen if self._placeholders[p].name in assembled.constant_inputs]
        self._frozen = FrozenTensors(used, [frozen[p] for p in used]) if used else None
        self._run = assembled.run
        record = self._record(plan, assembled)
        self._dump.write_record(plan, record)
        publish(record)
        if self._on_ready is not None:
            self._on_ready(record, assembled)
            self._on_ready = None
        return assembled.run

    def _assemble(self, constants: dict[str, torch.Tensor]) -> tuple[Plan, Assembled]:
        refused: dict[str, str] = {}
        home = self._home()
        while True:
            with observe.span("compile", "partition", graph=self._name):
                plan = make_plan(self._module.graph, config=self._config, refused=refused)
            fallbacks = _fallbacks(plan)
            if self._config.strict and fallbacks:
                self._raise_strict(*fallbacks[0])
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
                )
            except RefusedNode as refusal:
                if refused.keys() >= refusal.names:
                    raise LoweringError(
                        f"{self._name}: a refused call must leave its program; got "
                        f"{', '.join(sorted(refusal.names))} again: {refusal.reason}. List its op "
                        "in fallback_ops, and please report this.",
                        "refused-again",
                    ) from refusal
                refused.update(dict.fromkeys(refusal.names, refusal.reason))
                continue
            return plan, assembled

    def _home(self) -> str:
        """The device type of the graph's tensors: npu when any is there, scalars apart."""
        nodes = self._placeholders or list(self._module.graph.nodes)
        values = [node.meta.get("val") for node in nodes]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if not tensors:
            every = [node.meta.get("val") for node in self._module.graph.nodes]
            tensors = [value for value in every if isinstance(value, torch.Tensor)]
        kinds = {tensor.device.type for tensor in tensors}
        return "npu" if "npu" in kinds else "cpu"

    def _raise_strict(self, node: fx.Node, reason: str) -> None:
        line = source_line(node)
        where = f"node {node.name}, {line}" if line else f"node {node.name}"
        shapes = [
            tuple(value.shape)
            for source in node.all_input_nodes
            if isinstance(value := source.meta.get("val"), torch.Tensor)
        ]
        code = "no-converter" if reason.startswith("no converter") else "cannot-lower"
        raise LoweringError(
            f"Cannot lower {op_name(node.target)} ({where}) of inputs {shapes}: {reason}. "
            "Register a converter, or compile without strict so that it runs eagerly.",
            code,
            node.name,
            reason,
        )

    def _record(self, plan: Plan, assembled: Assembled) -> GraphRecord:
        eager = tuple(
            EagerNode(node.name, op_name(node.target), reason, source_line(node))
            for node, reason in _fallbacks(plan)
        )
        lowered = sum(program.node_count for program in assembled.programs)
        return GraphRecord(
            name=self._name,
            kind=self._kind,
            node_count=lowered + len(eager),
            programs=assembled.programs,
            eager=eager,
            frozen_count=len(assembled.constant_inputs),
            rebuilds=self._rebuilds,
            passes=tuple(result for result in self._passes if result.count),
            tuned=self._tuned,
        )


def _fallbacks(plan: Plan) -> list[tuple[fx.Node, str]]:
    """Eager calls that a program would have taken if it could, with the reasons."""
    return [
        (node, reason)
        for node, reason in plan.eager.items()
        if reason not in HOST_DUTIES and count_calls([node])
    ]

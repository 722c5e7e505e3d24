"""What is kept of a graph for later processes, and when it may be used again.

A graph is kept only if AOTAutograd changed nothing about the call: no input is written to, no
result is a view of an input or of another result, and one program computes all results. Everything
else takes the full way in each process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npu_compiler.compilation.content import ProgramContent
from npu_compiler.compilation.records import GraphRecord, next_graph_name, publish, recalled_record
from npu_compiler.config import read_settings
from npu_compiler.graph.source_names import source_names
from npu_compiler.options import CompilerConfig
from npu_compiler.programs import ProgramCache, compile_options, content_key
from npu_compiler.programs.execution import ProgramCall
from npu_compiler.programs.index_checks import check_indices
from npu_compiler.programs.kernel_execution import KernelCall
from npu_compiler.programs.kernel_files import find_kernels, kernel_options
from npu_compiler.torch_compile.recall.graph import RecalledGraph
from npu_compiler.torch_compile.recall.identity import graph_identity
from npu_compiler.torch_compile.recall.store import GraphStore
from npu_compiler.tuning.state import current_run
from npu_compiler.verification.verdict import Verdict
from npu_runtime import FrozenTensors, ProgramError, layer_recording, observe

if TYPE_CHECKING:
    from npu_compiler.compilation.assembly import Assembled

__all__ = ["GraphMemory"]

_logger = logging.getLogger(__name__)


class GraphMemory:
    """One graph from dynamo: found in the store, or kept there once it is compiled."""

    def __init__(
        self, graph_module: fx.GraphModule, inputs: Sequence[Any], config: CompilerConfig
    ) -> None:
        """Takes the identity of a graph; see graph_identity for the arguments."""
        self._inputs = tuple(inputs)
        self._names = source_names(graph_module)
        self._config = config
        self._store = GraphStore(config.cache_dir)
        self._tuning: tuple[str, str | None] = ("", None)
        self._is_plain = False
        self._key: str | None = None
        settings = read_settings()
        if settings.cache_size_bytes and settings.debug_dir is None and current_run() is None:
            with observe.span("compile", "identity"):
                identity = graph_identity(graph_module, inputs, config)
            if identity is not None:
                self._key = content_key({"dynamo": identity})

    def recall(self, trace: Callable[[Sequence[Any]], Callable[..., Any]]) -> RecalledGraph | None:
        """Returns the graph with its program, if an earlier process left both.

        Args:
            trace: the full way, for inputs: taken when a weight has changed since.
        """
        # Its calls are not traced, so the lines that its layers come from would be unknown.
        if self._key is None or layer_recording.is_wanted() or self._config.verify == "always":
            return None
        record = self._store.read(self._key)
        if record is None:
            return None
        with observe.span("compile", "recall"):
            try:
                return self._recalled(record, trace)
            except (KeyError, TypeError, ValueError, IndexError) as failure:
                _logger.warning(
                    "graph store: record %s is of another form (%s)", self._key, failure
                )
                return None

    def _recalled(
        self, record: Mapping[str, Any], trace: Callable[[Sequence[Any]], Callable[..., Any]]
    ) -> RecalledGraph | None:
        content = ProgramContent(**_tuples(record["content"]))
        key, name = record["tuning"]
        if _tuned_name(key, self._config) != name or _foreign_ops() & set(content.ops):
            return None
        weights = {name: self._inputs[position] for name, position in record["weights"].items()}
        if any(weight.is_inference() for weight in weights.values()):
            return None
        told = recalled_record(record["graph"], name=next_graph_name())
        find = self._kernels if told.programs[0].target == "kernels" else self._program
        call = find(record, told, content, weights)
        if call is None:
            return None
        positions = [*record["weights"].values()]
        frozen = FrozenTensors(positions, [*weights.values()], [self._names[p] for p in positions])
        publish(told)
        return RecalledGraph(
            call,
            inputs=record["inputs"],
            outputs=record["outputs"],
            frozen=frozen if weights else None,
            trace=trace,
        )

    def _program(
        self,
        record: Mapping[str, Any],
        told: GraphRecord,
        content: ProgramContent,
        weights: Mapping[str, torch.Tensor],
    ) -> ProgramCall | None:
        """Returns the call of a program of the device, if it is kept and known to be right."""
        options = {**compile_options(told.programs[0].precision), **record["device_options"]}
        cache = ProgramCache(self._config.cache_dir)
        key = content.key(weights, options=options)
        if not self._is_right(cache, key):
            return None
        try:
            program = cache.find(key, name=told.name, options=options)
        except ProgramError as failure:
            _logger.warning("graph store: the program of a graph cannot be loaded (%s)", failure)
            return None
        if program is None:
            return None
        call = ProgramCall(
            program,
            input_orders=[_order(order) for order in record["input_orders"]],
            output_orders=[_order(order) for order in record["output_orders"]],
            home=record["home"],
        )
        check_indices(program, record["index_checks"])
        return call

    def _kernels(
        self,
        record: Mapping[str, Any],
        told: GraphRecord,
        content: ProgramContent,
        weights: Mapping[str, torch.Tensor],
    ) -> KernelCall | None:
        """Returns the call of a kernel program, if it is kept and known to be right."""
        cache = ProgramCache(self._config.cache_dir)
        key = content.key(weights, options=kernel_options(record["home"]))
        found = find_kernels(cache, key) if self._is_right(cache, key) else None
        if found is None:
            return None
        names = [str(place) for place in record["inputs"]]
        return KernelCall(*found, input_names=names, name=told.name)

    def _is_right(self, cache: ProgramCache, key: str) -> bool:
        """Whether a program's results are known to be right, or nobody asks."""
        if self._config.verify != "first":
            return True
        # With other weights it is another program, perhaps left before its first run.
        verdict = Verdict.from_json(cache.verdict(key))
        return verdict is not None and verdict.status != "wrong"

    def traced(self, graph: fx.Graph) -> None:
        """Told by AOTAutograd's compiler of inference graphs, while torch's facts are at hand."""
        context = torch._guards.TracingContext.try_get()
        facts = None if context is None else context.fw_metadata
        if context is None or facts is None:
            return
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        plain = torch._functorch._aot_autograd.schemas.OutputType.non_alias
        self._is_plain = (
            len(placeholders) == len(self._inputs)
            and not any(info.mutates_data or info.mutates_metadata for info in facts.input_info)
            and all(
                info.output_type is plain and not info.requires_grad for info in facts.output_info
            )
            and facts.num_intermediate_bases == 0
            and not facts.tokens
            and not facts.is_rng_op_functionalized
            and not context.guards_context.aotautograd_guards
        )

    @property
    def is_plain(self) -> bool:
        """Whether AOTAutograd changed nothing about the call, once the graph was traced."""
        return self._is_plain

    def tuned_by(self, key: str, name: str | None) -> None:
        """Remembers which measured way of compiling was taken; see npu_compiler.tuning."""
        self._tuning = (key, name)

    def keep(self, record: GraphRecord, assembled: Assembled) -> None:
        """Keeps what came of the graph, if a later call can do with that."""
        inputs, self._inputs = self._inputs, ()
        if self._key is None or not self._is_plain or len(assembled.built) != 1 or record.eager:
            return
        built = assembled.built[0]
        ports = assembled.ports
        if built.content is None or ports is None:
            return
        places = ports.places
        weights = {name: places[name] for name in built.content.weights}
        if any(inputs[position].is_inference() for position in weights.values()):
            return
        self._store.write(
            self._key,
            {
                "content": asdict(built.content),
                "weights": weights,
                "inputs": [places[name] for name in built.call.input_names],
                "outputs": ports.outputs,
                "input_orders": built.input_orders,
                "output_orders": built.output_orders,
                "home": built.home,
                "device_options": dict(built.device_options),
                "index_checks": [dict(check) for check in built.index_checks],
                "tuning": self._tuning,
                "graph": asdict(record),
            },
        )


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    names = ("weights", "ops", "compression")
    return {key: tuple(one) if key in names else one for key, one in content.items()}


def _order(axes: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if axes is None else tuple(axes)


def _tuned_name(key: str, config: CompilerConfig) -> str | None:
    """Which way of compiling is recorded as the fastest by now."""
    if not (GraphStore(config.cache_dir).directory.parent / "tuning").is_dir():
        return None
    from npu_compiler.tuning.choice import recorded_candidate  # late: with the ops of lowering

    candidate = recorded_candidate(key, config)
    return None if candidate is None else candidate.name


def _foreign_ops() -> frozenset[str]:
    """Ops with a converter from outside, whose programs are rebuilt in each process."""
    # The table is looked at only where somebody can have written into it.
    is_imported = "npu_compiler.lowering.registry" in sys.modules
    if not is_imported and not entry_points(group="npu_compiler.converters"):
        return frozenset()
    from npu_compiler.lowering.registry import foreign_ops

    return foreign_ops()

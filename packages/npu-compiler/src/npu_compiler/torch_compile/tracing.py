"""Full tracing of a graph from dynamo by AOTAutograd: functionalization, and the backward graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from npu_compiler.graph.channels_last import spread_channels_last
from npu_compiler.graph.op_forms import decompositions, keep_attention_whole
from npu_compiler.graph.origins import (
    keep_name,
    keep_source_names,
    note_source_names,
    source_names,
)
from npu_compiler.graph.whole_resizing import resizing_kept_whole
from npu_compiler.graph_compiler.compiled_graph import CompiledGraph
from npu_compiler.graph_compiler.failures import is_failure, report_failure
from npu_compiler.lowering.capability import takes_from_host
from npu_compiler.option_names import check_modules
from npu_compiler.options import AUTO, CompilerConfig
from npu_compiler.programs.execution import run_shortcut
from npu_compiler.torch_compile.call_tracing import trace_calls
from npu_compiler.torch_compile.graph_cache import GraphMemory
from npu_compiler.tuning.candidates import configured
from npu_compiler.tuning.run import TuningRun, current_run
from npu_compiler.tuning.store import tuning_key
from npu_runtime import observe
from npu_runtime.npu import is_current_stream_capturing

__all__ = ["trace"]

# Of mode="max-autotune": seconds of measuring per graph, and how far a result may be from the
# default's, as in npu_compiler.tune.
_BUDGET_S = 5.0
_MAX_ERROR = 1e-4


def trace(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    config: CompilerConfig,
    *,
    memory: GraphMemory | None = None,
    rebuilds: int = 0,
    is_tuning: bool = False,
) -> Callable[..., Any]:
    """Traces a graph from dynamo, which it rewrites; returns a function that runs it.

    `memory` caches the result for other processes; `rebuilds` counts earlier compilations.
    `is_tuning`: measure the ways to compile it, unless that was done before.
    """
    names = source_names(graph_module)
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    is_part = bool(reason is not None and reason.graph_break)
    if not torch.is_grad_enabled():
        keep_attention_whole(graph_module)
    asked = _Compilation(config, names, memory, rebuilds, is_tuning=is_tuning, is_part=is_part)
    called = _trace_calls(graph_module, inputs, asked)
    return called or _trace_by_autograd(graph_module, inputs, asked)


@dataclass(frozen=True)
class _Compilation:
    """Settings of a graph's compilation; `is_part`: of a function that a graph break divides."""

    config: CompilerConfig
    names: Sequence[str]
    memory: GraphMemory | None
    rebuilds: int
    is_tuning: bool
    is_part: bool


def _trace_by_autograd(
    graph_module: fx.GraphModule, inputs: Sequence[Any], asked: _Compilation
) -> Callable[..., Any]:
    # Late: graphs that are traced call by call need neither.
    from npu_compiler.buckets import BucketedGraph, wants_static_programs
    from npu_compiler.buckets.sizes import Sizes

    config, memory = asked.config, asked.memory
    made: list[Any] = []

    def compiler(kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            positions = _static_positions() if kind == "inference" else ()
            if kind != "backward" and config.keep_float32 != AUTO:
                _check_kept(graph.graph, tuple(config.keep_float32), is_part=asked.is_part)
            if kind == "inference":
                keep_source_names(graph.graph, asked.names)
            kept = memory if kind == "inference" else None

            def compile_whole(module: fx.GraphModule) -> Any:
                whole = _make_graph(
                    module, asked, kind=kind, static_positions=positions, memory=kept
                )
                made.append(whole)
                return whole

            sizes = Sizes(graph.graph)
            if sizes.symbols and sizes.is_whole and wants_static_programs(config):
                kept = None
                return BucketedGraph(
                    graph,
                    sizes,
                    is_padding=kind == "inference",
                    kept=positions,
                    buckets=config.bucket_sizes,
                    compile_static=compile_whole,
                    check_indices=config.check_indices,
                )
            if kept is not None:
                kept.traced(graph.graph)
            return compile_whole(graph)

        def compile_or_run(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            try:
                return compile_graph(graph, inputs)
            except Exception as failure:  # any exception here is a defect of the compiler
                # After a failure before the forward graph exists, the graph can run without
                # AOTAutograd.
                if kind != "backward" or not is_failure(failure):
                    raise
                report_failure(
                    "backward graph", failure, instead="it runs eagerly", is_strict=config.strict
                )
                return make_boxed_func(graph.forward)

        return compile_or_run

    def partition(joint: fx.GraphModule, *given: Any, **options: Any) -> Any:
        if not takes_from_host(config):
            spread_channels_last(joint.graph)
        return min_cut_rematerialization_partition(joint, *given, **options)

    capture = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    with observe.span("compile", "capture"), resizing_kept_whole():
        traced: Callable[..., Any] = capture(graph_module, inputs)
    is_plain = memory is not None and memory.is_plain and len(made) == 1
    if is_plain and isinstance(made[0], CompiledGraph):
        return _PlainGraph(made[0], traced)
    return traced


def _trace_calls(
    graph_module: fx.GraphModule, inputs: Sequence[Any], asked: _Compilation
) -> Callable[..., Any] | None:
    """Returns a function for an inference graph that does not need AOTAutograd, or None."""
    config, memory = asked.config, asked.memory
    if memory is None or not memory.is_named:
        return None
    with observe.span("compile", "capture"):
        traced = trace_calls(graph_module, decompositions())
    if traced is None:
        return None
    graph = traced.module.graph
    if config.keep_float32 != AUTO:
        _check_kept(graph, tuple(config.keep_float32), is_part=asked.is_part)
    note_source_names(graph, asked.names)
    memory.settle(is_plain=True)
    made = _make_graph(
        traced.module,
        asked,
        kind="inference",
        static_positions=traced.static_positions,
        memory=memory,
    )

    def run(*inputs: Any) -> Any:
        return made([*inputs])

    if not isinstance(made, CompiledGraph):
        return run
    if all(one.is_cpu for one in inputs) and not is_current_stream_capturing():
        made.compile_ahead(inputs)
    return _PlainGraph(made, run)


def _make_graph(
    graph_module: fx.GraphModule,
    asked: _Compilation,
    *,
    kind: str,
    static_positions: Sequence[int],
    memory: GraphMemory | None,
) -> Any:
    """Returns the graph for AOTAutograd, by its tuning record, or one that measures first."""
    config = asked.config
    if config.keep_float32 == AUTO:
        # Late: imports the export code, which other graphs do not need.
        from npu_compiler.torch_compile.auto_kept import AutoKeptGraph

        def build(module: fx.GraphModule, kept: tuple[str, ...], auto_kept: str) -> CompiledGraph:
            return CompiledGraph(
                module,
                kind=kind,
                static_positions=static_positions,
                config=replace(config, keep_float32=kept),
                rebuilds=asked.rebuilds,
                auto_kept=auto_kept,
            )

        return AutoKeptGraph(graph_module, kind, static_positions, build)
    if kind == "inference" and current_run() is not None:
        return _measured_graph(graph_module, static_positions, config)
    tuned, name = configured(graph_module.graph, kind=kind, config=config)
    if kind == "inference" and asked.is_tuning and name is None:
        run = TuningRun(budget_s=_BUDGET_S, max_error=_MAX_ERROR)
        return _measured_graph(graph_module, static_positions, config, run)
    if memory is not None:
        memory.tuned_by(tuning_key(graph_module.graph, kind=kind, config=config), name)
    return CompiledGraph(
        graph_module,
        kind=kind,
        static_positions=static_positions,
        config=tuned,
        tuned=name,
        on_ready=None if memory is None else memory.keep,
        rebuilds=asked.rebuilds,
    )


def _measured_graph(*given: Any) -> Any:
    from npu_compiler.tuning.measuring import MeasuredGraph  # late: only for tuning

    return MeasuredGraph(*given)


class _PlainGraph:
    """A graph that runs without AOTAutograd's wrappers if one program computes all results.

    The wrappers take some 5 us per call (torch 2.12). They handle writes to inputs, views among the
    results, gradients and autocast, which such a program does not need.
    """

    def __init__(self, graph: CompiledGraph, traced: Callable[..., Any]) -> None:
        """Takes a graph, and AOTAutograd's result for calls that need several programs."""
        self._graph = graph
        self._traced = traced

    def __call__(self, *inputs: Any) -> Any:
        """Runs the graph."""
        shortcut, classes = self._graph.shortcut, self._graph.classes
        if shortcut is not None and (classes is None or classes.left > 0):
            if classes is not None:
                classes.left -= 1
            results = run_shortcut(shortcut, inputs)
            if results is not None:
                return results
        if self._graph.is_one_program:
            return self._graph(list(inputs))
        return self._traced(*inputs)


# Patterns of keep_float32 for a model with graph breaks -> patterns that matched a call so far.
_named_in_parts: dict[tuple[str, ...], set[str]] = {}


def _check_kept(graph: fx.Graph, patterns: tuple[str, ...], *, is_part: bool) -> None:
    """Checks that keep_float32 names calls of a graph, or of the parts of one with graph breaks.

    Raises:
        OptionError: [option-value] for a pattern without a match.
    """
    if not patterns:
        return
    names = {keep_name(node) for node in graph.nodes if node.op == "call_function"}
    named = {one for one in patterns if any(fnmatchcase(name, one) for name in names)}
    if is_part or patterns in _named_in_parts:
        # It is unknown which part is the last.
        _named_in_parts.setdefault(patterns, set()).update(named)
        rest = sorted({*patterns} - _named_in_parts[patterns])
        if rest and not is_part:
            warnings.warn(
                f"option keep_float32: no part of the model compiled so far has a module "
                f"{', '.join(rest)}; these have {', '.join(sorted(names)[:8])}. Correct the name "
                "if this is the last part. [option-value]",
                stacklevel=2,
            )
        return
    check_modules("keep_float32", patterns, named, names)


def _static_positions() -> tuple[int, ...]:
    """Returns positions of inputs of the current graph that are parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return tuple(metadata.static_input_indices) if metadata is not None else ()

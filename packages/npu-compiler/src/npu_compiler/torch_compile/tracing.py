"""A graph from dynamo in full: AOTAutograd makes it functional and splits it for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from npu_compiler.buckets import BucketedGraph, wants_static_programs
from npu_compiler.buckets.sizes import Sizes
from npu_compiler.graph.op_forms import decompositions, keep_attention_whole
from npu_compiler.graph.origins import keep_source_names, source_names
from npu_compiler.graph_compiler.compiled_graph import CompiledGraph
from npu_compiler.options import AUTO, CompilerConfig
from npu_compiler.programs.execution import run_shortcut
from npu_compiler.torch_compile.graph_cache import GraphMemory
from npu_compiler.tuning.candidates import configured
from npu_compiler.tuning.measuring import MeasuredGraph
from npu_compiler.tuning.run import current_run
from npu_compiler.tuning.store import tuning_key
from npu_runtime import observe

__all__ = ["trace"]


def trace(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    config: CompilerConfig,
    *,
    memory: GraphMemory | None = None,
    rebuilds: int = 0,
) -> Callable[..., Any]:
    """Traces a graph from dynamo, which is rewritten, and returns what runs it.

    `memory` keeps what comes of it for other processes; `rebuilds` counts earlier compilations.
    """
    names = source_names(graph_module)
    made: list[Any] = []
    if not torch.is_grad_enabled():
        keep_attention_whole(graph_module)

    def compiler(kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            positions = _static_positions() if kind == "inference" else ()
            if kind == "inference":
                keep_source_names(graph.graph, names)
            kept = memory if kind == "inference" else None

            def compile_whole(module: fx.GraphModule) -> Any:
                whole = _make_graph(
                    module,
                    kind=kind,
                    static_positions=positions,
                    config=config,
                    memory=kept,
                    rebuilds=rebuilds,
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

        return compile_graph

    capture = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    with observe.span("compile", "capture"):
        traced: Callable[..., Any] = capture(graph_module, inputs)
    is_plain = memory is not None and memory.is_plain and len(made) == 1
    if is_plain and isinstance(made[0], CompiledGraph):
        return _PlainGraph(made[0], traced)
    return traced


def _make_graph(
    graph_module: fx.GraphModule,
    *,
    kind: str,
    static_positions: Sequence[int],
    config: CompilerConfig,
    memory: GraphMemory | None = None,
    rebuilds: int = 0,
) -> Any:
    """Returns what AOTAutograd calls: the graph as recorded, or one that measures first."""
    if config.keep_float32 == AUTO:
        # Late: with the way of exports it takes time that no other graph needs.
        from npu_compiler.torch_compile.auto_kept import AutoKeptGraph

        def build(module: fx.GraphModule, kept: tuple[str, ...], auto_kept: str) -> CompiledGraph:
            return CompiledGraph(
                module,
                kind=kind,
                static_positions=static_positions,
                config=replace(config, keep_float32=kept),
                rebuilds=rebuilds,
                auto_kept=auto_kept,
            )

        return AutoKeptGraph(graph_module, kind, static_positions, build)
    if kind == "inference" and current_run() is not None:
        return MeasuredGraph(graph_module, static_positions, config)
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


class _PlainGraph:
    """A graph that runs without AOTAutograd's wrappers if one program computes all results.

    The wrappers take some 5 us per call (torch 2.12). They serve inputs that are written to, views
    among the results, gradients and calls under autocast, and such a program needs none of these.
    """

    def __init__(self, graph: CompiledGraph, traced: Callable[..., Any]) -> None:
        """Takes a graph, and AOTAutograd's result for calls that need several programs."""
        self._graph = graph
        self._traced = traced

    def __call__(self, *inputs: Any) -> Any:
        """Runs the graph."""
        shortcut = self._graph.shortcut
        if shortcut is not None:
            results = run_shortcut(shortcut, inputs)
            if results is not None:
                return results
        if self._graph.is_one_program:
            return self._graph(list(inputs))
        return self._traced(*inputs)


def _static_positions() -> tuple[int, ...]:
    """Inputs of the graph being compiled that are parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return tuple(metadata.static_input_indices) if metadata is not None else ()

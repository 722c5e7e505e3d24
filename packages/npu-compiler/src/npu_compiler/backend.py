"""The backend that `torch.compile(model, backend="npu")` names.

It captures: dynamo hands a graph over, AOTAutograd makes it functional and, for training, splits it
into forward and backward. Compiling these graphs is npu_compiler.compilation's work, choosing how
npu_compiler.tuning's, and serving sizes that vary by static programs npu_compiler.buckets'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from npu_compiler.buckets import BucketedGraph, wants_static_programs
from npu_compiler.buckets.sizes import Sizes
from npu_compiler.capture import decompositions, keep_attention_whole
from npu_compiler.options import CompilerConfig, backend_options
from npu_compiler.tuning.session import make_graph
from npu_runtime import observe

__all__ = ["npu"]


def npu(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph from dynamo; the entry point `npu` of group `torch_dynamo_backends`.

    Args:
        graph_module: as dynamo captured it.
        example_inputs: its inputs, fake or real.
        options: see npu_compiler.options.CompilerConfig, as `torch.compile(options={...})`.
        mode: torch.compile's mode; programs have no modes, so only None is accepted.

    Raises:
        OptionError: an option is not known, or its value is not.
    """
    if mode is not None:
        backend_options({"mode": mode})
    config = backend_options(options)
    is_inference = config.training is False or config.compression is not None
    if is_inference and torch.is_grad_enabled():
        return _without_gradients(graph_module, example_inputs, config)
    return _capture(graph_module, example_inputs, config)


def _capture(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], config: CompilerConfig
) -> Callable[..., Any]:
    if not torch.is_grad_enabled():
        keep_attention_whole(graph_module)

    def compiler(kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            positions = _static_positions() if kind == "inference" else ()

            def compile_whole(module: fx.GraphModule) -> Any:
                return make_graph(module, kind=kind, static_positions=positions, config=config)

            sizes = Sizes(graph.graph)
            if sizes.symbols and sizes.is_whole and wants_static_programs(config):
                return BucketedGraph(
                    graph,
                    sizes,
                    is_padding=kind == "inference",
                    kept=positions,
                    buckets=config.bucket_sizes,
                    compile_static=compile_whole,
                )
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
        return capture(graph_module, example_inputs)


def _without_gradients(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], config: CompilerConfig
) -> Callable[..., Any]:
    """Captures an inference graph although the caller has gradients on."""
    with torch.no_grad():
        captured = _capture(graph_module, example_inputs, config)

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return captured(*args)

    return run


def _static_positions() -> tuple[int, ...]:
    """Inputs of the graph being compiled that are parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return tuple(metadata.static_input_indices) if metadata is not None else ()


# Read by torch.compile's listing of backends.
npu._tags = ()  # type: ignore[attr-defined]

"""The backend that `torch.compile(model, backend="npu")` names.

dynamo hands a graph over. One that an earlier process compiled is recalled; any other is traced in
full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from npu_compiler.config import read_settings
from npu_compiler.options import AUTO, CompilerConfig, backend_options
from npu_compiler.torch_compile.recall import GraphMemory
from npu_compiler.tuning.state import current_run
from npu_runtime.refusal import check_environment

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
    if config.target is None:
        session = current_run()
        is_estimated = session is not None and session.estimator is not None
        config = replace(config, target="NPU" if is_estimated else read_settings().target)
    is_inference = config.training is False or config.compression is not None
    if is_inference and torch.is_grad_enabled():
        return _without_gradients(graph_module, example_inputs, config)
    return _capture(graph_module, example_inputs, config)


def _capture(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], config: CompilerConfig
) -> Callable[..., Any]:
    if config.keep_float32 == AUTO:  # it is chosen by values, which no memory knows
        return _trace(graph_module, example_inputs, config)
    memory = GraphMemory(graph_module, example_inputs, config)

    def full_way(inputs: Sequence[Any]) -> Callable[..., Any]:
        return _trace(graph_module, inputs, config, rebuilds=1)

    return memory.recall(full_way) or _trace(graph_module, example_inputs, config, memory=memory)


def _trace(
    graph_module: fx.GraphModule, inputs: Sequence[Any], config: CompilerConfig, **how: Any
) -> Callable[..., Any]:
    # Late: with AOTAutograd, passes and converters it takes half a second, which a graph that is
    # known from an earlier process does not need.
    from npu_compiler.torch_compile.tracing import trace

    return trace(graph_module, inputs, config, **how)


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


# torch.compile imports this module before dynamo runs. What is wrong with the environment is said
# here, as dynamo would wrap it into an error of its own.
check_environment()
read_settings()

# Read by torch.compile's listing of backends.
npu._tags = ()  # type: ignore[attr-defined]

"""keep_float32="auto": chooses modules to keep in float32 at a graph's first call, by its values.

The choice holds for these inputs and weights. It is repeated when weights change, but not for other
inputs, which may overflow elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from npu_compiler.errors import LoweringError
from npu_compiler.graph_compiler.compiled_graph import CompiledGraph
from npu_compiler.half_precision import TOLERANCE, KeptSearch, search_kept
from npu_compiler.verification.graph_check import keep_original
from npu_runtime import FrozenTensors

__all__ = ["AutoKeptGraph"]

# Takes a graph, which it rewrites, the names of modules to keep, and the text for explain.
_Build = Callable[[fx.GraphModule, tuple[str, ...], str], CompiledGraph]


class AutoKeptGraph:
    """A graph that is compiled after a half-precision simulation of its first call."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        kind: str,
        static_positions: Sequence[int],
        build: _Build,
    ) -> None:
        """Takes a graph as CompiledGraph does; nothing is computed before the first call."""
        self._boxed_call = True
        self._module = graph_module
        self._kind = kind
        self._positions = static_positions
        self._build = build
        self._lock = threading.Lock()
        self._weights: FrozenTensors | None = None
        self._chosen: CompiledGraph | None = None

    def __call__(self, inputs: list[Any]) -> Any:
        """Runs the graph on a list of inputs, which is emptied; [keep-auto] without a choice."""
        with self._lock:
            weights = self._weights
            if self._chosen is None or (weights is not None and not weights.is_current(inputs)):
                self._chosen = self._choose(inputs)
        return self._chosen(inputs)

    def _choose(self, inputs: Sequence[Any]) -> CompiledGraph:
        if self._kind != "inference":
            raise _refusal(
                "the graph must be an inference graph",
                f"a {self._kind} graph of training",
                "Call the model under torch.no_grad(), or compile with training=False",
            )
        copy = keep_original(self._module)
        if copy is None:
            raise _refusal(
                "the graph must give equal results each time",
                "one that draws random numbers or writes to its inputs",
                "Use model.eval(), or name the modules",
            )
        nodes = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        values = {node.name: _on_host(value) for node, value in zip(nodes, inputs, strict=True)}
        _check_dtypes(values)
        try:
            found = search_kept(copy, values)
        except (NotImplementedError, RuntimeError) as failure:
            raise _refusal(
                "every call of the graph must run on the CPU",
                " ".join(str(failure).split())[:200],
                "Name the modules",
            ) from failure
        if not found.last.error <= TOLERANCE:
            raise _refusal(
                f"outputs must come within {TOLERANCE:.0e} of float32's",
                f"an error of {found.last.error:.1e} with {', '.join(found.kept)} in float32",
                "Compute the model in float32 on the CPU",
            )
        self._weights = self._watched(inputs)
        return self._build(copy, found.kept, _said(found))

    def _watched(self, inputs: Sequence[Any]) -> FrozenTensors | None:
        positions = [
            position
            for position in self._positions
            if isinstance(inputs[position], torch.Tensor) and not inputs[position].is_inference()
        ]
        tensors = [inputs[position] for position in positions]
        return FrozenTensors(positions, tensors) if positions else None


def _on_host(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _check_dtypes(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if is_float and value.dtype is not torch.float32:
            raise _refusal(
                "weights and inputs must be float32",
                f"{value.dtype} for {name}",
                "Use model.float() and float inputs, or name the modules",
            )


def _said(found: KeptSearch) -> str:
    before, after = found.first.error, found.last.error
    if not found.kept:
        return f"keep_float32='auto' keeps nothing: the first call's error is {before:.1e}"
    return (
        f"keep_float32='auto' keeps {', '.join(found.kept)}: the first call's error is "
        f"{after:.1e} instead of {before:.1e}, in the simulation"
    )


def _refusal(rule: str, received: str, step: str) -> LoweringError:
    return LoweringError(f"keep_float32='auto': {rule}, got {received}. {step}.", code="keep-auto")

"""Ways to capture a random graph for the compiler, shortest first.

For a small graph, torch.compile (dynamo, then AOTAutograd) takes ten times as long as the compiler.
So most graphs take one of two shorter ways to the same aten calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from npu_compiler.buckets import BucketedGraph, wants_static_programs
from npu_compiler.buckets.sizes import Sizes
from npu_compiler.fuzz.graph import RandomGraph
from npu_compiler.graph.op_forms import decompositions, keep_attention_whole
from npu_compiler.graph_compiler.compiled_graph import CompiledGraph
from npu_compiler.options import CompilerConfig
from npu_compiler.torch_compile.backend import npu

__all__ = ["Compiled", "captured_by_aot", "captured_by_dynamo", "recorded", "traced"]

# A compiled graph; takes the inputs that are not frozen.
Compiled = Callable[..., Sequence[torch.Tensor]]


def recorded(graph: RandomGraph, config: CompilerConfig, device: str) -> Compiled:
    """Compiles the aten calls of one eager run: static sizes, no writes.

    If torch writes internally, as in rms_norm, AOTAutograd captures the graph instead.
    """
    tensors = [tensor.to(device) for tensor in graph.tensors()]
    pairs = list(zip(tensors, graph.inputs, strict=True))
    frozen = [tensor for tensor, spec in pairs if spec.frozen]
    given = [tensor for tensor, spec in pairs if not spec.frozen]
    root = torch.nn.Module()
    recorder = _Recorder(root)
    for tensor in (*frozen, *given):
        recorder.add_input(tensor)
    try:
        with recorder, _WholeAttention(), torch.device(device):
            values = graph.values(tensors)
    except _Write:
        return captured_by_aot(graph, config, device)
    results = [values[index] for index in graph.outputs]
    captured = fx.GraphModule(root, recorder.finish(results))
    run = CompiledGraph(
        captured, kind="inference", static_positions=range(len(frozen)), config=config
    )
    return lambda *inputs: run([*frozen, *inputs])


class _WholeAttention(TorchFunctionMode):
    """Records attention as one call, like keep_attention_whole."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Executes a call."""
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        is_causal = (kwargs or {}).get("is_causal", False)
        return torch.ops.npu_compiler.attention.default(*args, None, is_causal, None, False)


class _Write(Exception):
    """Raised for a call that writes to its argument, which compiled graphs do not have."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each call that reaches the dispatcher, after the compiler's decompositions."""

    def __init__(self, root: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._root = root
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._held: list[torch.Tensor] = []  # keeps tensors alive, so that ids are unique
        self._table = decompositions()

    def add_input(self, tensor: torch.Tensor) -> None:
        """Adds a placeholder."""
        self._know(tensor, self._graph.placeholder(f"input_{len(self._held)}"))

    def finish(self, results: Sequence[torch.Tensor]) -> fx.Graph:
        """Returns the graph with these results."""
        self._graph.output(tuple(self._nodes[id(result)] for result in results))
        return self._graph

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Executes a call and records it; raises _Write if it changes a tensor."""
        if func._schema.is_mutable:
            raise _Write
        if func in self._table:
            with self:
                result = self._table[func](*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = func(*args, **(kwargs or {}))
        taken = pytree.tree_map_only(torch.Tensor, self._node, (args, kwargs or {}))
        node = self._graph.call_function(func, *taken)
        if isinstance(result, torch.Tensor):
            self._know(result, node)
        elif isinstance(result, (tuple, list)):
            node.meta["val"] = result
            for index, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    pick = self._graph.call_function(operator.getitem, (node, index))
                    self._know(part, pick)
        return result

    def _know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        node.meta["val"] = tensor
        self._nodes[id(tensor)] = node
        self._held.append(tensor)

    def _node(self, tensor: torch.Tensor) -> fx.Node:
        found = self._nodes.get(id(tensor))
        if found is None:
            name = f"constant_{len(self._held)}"
            setattr(self._root, name, tensor)
            found = self._graph.get_attr(name)
            self._know(tensor, found)
        return found


def traced(graph: RandomGraph, config: CompilerConfig, device: str) -> tuple[Compiled, ShapeEnv]:
    """Returns a compiled graph with dynamic named axes, and torch's assumptions about sizes."""
    module = graph.module(device)
    keep_attention_whole(module)
    frozen = dict(module.named_buffers())
    shapes = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=shapes)
    fakes = [
        mode.from_tensor(
            _without_base(tensor).to(device),
            source=ConstantSource(f"x{index}"),
            symbolic_context=StatelessSymbolicContext(
                dynamic_sizes=_dynamic(tensor.dim(), names),
                constraint_sizes=[None] * tensor.dim(),
            ),
        )
        for index, (tensor, names) in enumerate(zip(graph.given(), graph.names(), strict=True))
    ]
    constants = {
        name: mode.from_tensor(tensor, static_shapes=True) for name, tensor in frozen.items()
    }

    def run(buffers: dict[str, torch.Tensor], *inputs: torch.Tensor) -> Any:
        return torch.func.functional_call(module, buffers, inputs)

    with mode:
        captured = make_fx(run, decomposition_table=decompositions())(constants, *fakes)
    # Called with one list, like AOTAutograd's graphs, even if nothing is lowered.
    captured.graph.set_codegen(fx.graph.CodeGen())
    captured.recompile()
    tensors = list(frozen.values())

    def whole(static: fx.GraphModule) -> CompiledGraph:
        positions = range(len(tensors))
        return CompiledGraph(static, kind="inference", static_positions=positions, config=config)

    sizes = Sizes(captured.graph)
    compiled: Callable[[list[Any]], Any]
    if sizes.symbols and sizes.is_whole and wants_static_programs(config):
        compiled = BucketedGraph(
            captured,
            sizes,
            is_padding=True,
            kept=range(len(tensors)),
            buckets=config.bucket_sizes,
            compile_static=whole,
        )
    else:
        compiled = whole(captured)
    return lambda *inputs: compiled([*tensors, *inputs]), shapes


def _without_base(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the same strides, so that torch does not guard on the base's sizes."""
    if 0 in tensor.stride():
        return tensor.contiguous()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def _dynamic(rank: int, names: str) -> list[DimDynamic]:
    letters = names or "-" * rank
    return [DimDynamic.STATIC if name == "-" else DimDynamic.DYNAMIC for name in letters]


def captured_by_aot(graph: RandomGraph, config: CompilerConfig, device: str) -> Compiled:
    """Compiles like torch.compile from AOTAutograd on, including writes and aliasing views."""
    inputs = [tensor.to(device) for tensor in graph.given()]
    return npu(graph.module(device), inputs, options=_options(config))


def captured_by_dynamo(
    graph: RandomGraph, config: CompilerConfig, device: str, *, dynamic: bool
) -> Compiled:
    """Compiles with torch.compile."""
    torch._dynamo.reset()
    module = graph.module(device)
    compiled: Compiled = torch.compile(
        module, backend="npu", dynamic=dynamic, options=_options(config)
    )
    return compiled


def _options(config: CompilerConfig) -> dict[str, Any]:
    plain = CompilerConfig()
    names = (
        "dtype",
        "device_options",
        "verify",
        "nan",
        "buckets",
        "cache_dir",
        "precision",
        "target",
    )
    values = {name: getattr(config, name) for name in names}
    return {key: value for key, value in values.items() if value != getattr(plain, key)}

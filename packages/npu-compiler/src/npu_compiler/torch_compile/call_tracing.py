"""Tracing of inference graphs call by call; similar calls are traced once.

AOTAutograd traces a whole model twice, layer after layer. A graph that takes no gradients, writes
to none of its inputs and returns no views needs neither its functionalization nor its wrappers, so
each call from dynamo is replaced by the aten calls from the trace of a similar call.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from npu_compiler.graph.nodes import lazy_module

__all__ = ["TracedCalls", "trace_calls"]

_logger = logging.getLogger(__name__)

Decompositions = Mapping[Any, Callable[..., Any]]

# Calls without computation.
_EMPTY = (torch._C._log_api_usage_once,)
_PRODUCTS = (torch._C._nn.linear, torch.matmul, operator.matmul, "matmul", "__matmul__")


class _Unfit(Exception):
    """The graph needs AOTAutograd."""


@dataclass(frozen=True)
class TracedCalls:
    """An inference graph of aten calls, with fake values in `meta["val"]`."""

    module: fx.GraphModule
    static_positions: tuple[int, ...]  # positions of inputs that are weights and buffers


def trace_calls(graph_module: fx.GraphModule, decompositions: Decompositions) -> TracedCalls | None:
    """Returns the aten graph of a graph from dynamo, or None if AOTAutograd must trace it.

    Args:
        graph_module: from dynamo, of calls that npu_compiler.torch_compile.graph_cache can name,
            with inputs that are plain tensors of fixed sizes.
        decompositions: op -> function that computes it by other ops, as for AOTAutograd.
    """
    is_plain_state = not (
        torch.is_grad_enabled()
        or torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("npu")
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
    )
    if not is_plain_state:
        return None
    try:
        return _Tracing(graph_module, decompositions).trace()
    except _Unfit as reason:
        _logger.debug("call tracing: AOTAutograd traces the graph (%s)", reason)
    except Exception as failure:  # noqa: BLE001  # AOTAutograd reports errors in a graph
        _logger.debug("call tracing: AOTAutograd traces the graph (%r)", failure)
    return None


@dataclass(frozen=True)
class _Value:
    """A tensor of the graph: its node, its fake value, and the owner of its memory."""

    node: fx.Node
    fake: torch.Tensor
    owner: object


@dataclass(frozen=True)
class _Template:
    """The aten calls of one call: a functional graph, and the owner of each result's memory.

    An owner is the position of an input, or a name for new memory.
    """

    graph: fx.Graph
    owners: tuple[object, ...]
    written: Mapping[int, fx.Node]  # position of an input that the call writes to -> the new value


class _Tracing:
    """The conversion of one graph from dynamo's calls to aten's."""

    def __init__(self, graph_module: fx.GraphModule, decompositions: Decompositions) -> None:
        self._source = graph_module.graph
        self._decompositions = dict(decompositions)
        self._graph = fx.Graph()
        self._values: dict[fx.Node, Any] = {}
        self._templates: dict[Any, _Template] = {}
        self._inputs: list[_Value] = []
        self._mode: Any = None
        # In-place writes: original value of a node -> its current value.
        self._current: dict[fx.Node, _Value] = {}

    def trace(self) -> TracedCalls:
        """Returns the graph; raises _Unfit."""
        static = []
        for node in self._source.nodes:
            if node.op == "placeholder":
                if (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"):
                    static.append(len(self._inputs))
                self._values[node] = self._input(node)
            elif node.target in _EMPTY:
                self._values[node] = None
            elif node.op in ("call_function", "call_method"):
                self._values[node] = self._call(node)
            elif node.op == "output":
                self._return(node)
            else:
                raise _Unfit(f"{node.op} {node.target}")
        self._graph.eliminate_dead_code()
        module = lazy_module(torch.nn.Module(), self._graph)
        return TracedCalls(module, tuple(static))

    def _input(self, node: fx.Node) -> _Value:
        fake = node.meta.get("example_value")
        if not isinstance(fake, FakeTensor) or fake.layout is not torch.strided:
            raise _Unfit(f"the input {node.name}")
        self._mode = fake.fake_mode
        plain = fake.detach()
        copy = self._graph.placeholder(f"arg{len(self._inputs)}_1")
        copy.meta["val"] = plain
        value = _Value(copy, plain, copy)
        self._inputs.append(value)
        return value

    def _return(self, node: fx.Node) -> None:
        results = self._mapped(node.args[0])
        leaves = pytree.tree_leaves(results)
        owners = [one.owner for one in leaves if isinstance(one, _Value)]
        if len(owners) != len(leaves) or len({*owners}) != len(owners):
            raise _Unfit("results that share memory, or are not tensors")
        if {*owners} & {one.owner for one in self._inputs}:
            raise _Unfit("a result is an input, or a view of one")
        self._graph.output(tuple(one.node for one in leaves))

    def _mapped(self, arguments: Any) -> Any:
        return fx.map_arg(arguments, self._read)

    def _read(self, node: fx.Node) -> Any:
        """Returns the current value of a node in dynamo's graph."""

        def latest(value: Any) -> Any:
            while isinstance(value, _Value) and value.node in self._current:
                value = self._current[value.node]
            return value

        return pytree.tree_map(latest, self._values[node]) if self._current else self._values[node]

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = self._mapped((node.args, node.kwargs))
        if node.target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        leaves, form = pytree.tree_flatten((args, kwargs))
        given = list({one.node: one for one in leaves if isinstance(one, _Value)}.values())
        places = {one.node: place for place, one in enumerate(given)}
        described = tuple(
            ("tensor", places[one.node]) if isinstance(one, _Value) else (type(one), repr(one))
            for one in leaves
        )
        key = (node.op, node.target, str(form), described, tuple(_kind(one.fake) for one in given))
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._traced(node, leaves, form, given)
        return self._placed(template, node, given)

    def _traced(
        self, node: fx.Node, leaves: Sequence[Any], form: Any, given: Sequence[_Value]
    ) -> _Template:
        places = {one.node: place for place, one in enumerate(given)}

        def call(*tensors: torch.Tensor) -> Any:
            own = [tensors[places[one.node]] if isinstance(one, _Value) else one for one in leaves]
            args, kwargs = pytree.tree_unflatten(own, form)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            assert callable(node.target)
            return node.target(*args, **kwargs)

        if node.target in _PRODUCTS:
            fakes = [one.fake for one in given]
            has_gaps = any(one.dim() > 2 and not one.is_contiguous() for one in fakes)
            if has_gaps and any(one.dim() <= 2 for one in fakes):
                raise _Unfit("a product that AOTAutograd folds although its rows have gaps")
        assert self._mode is not None
        # Like AOTAutograd: with torch's Python decompositions.
        with self._mode, enable_python_dispatcher():
            fakes = [_fresh(one.fake) for one in given]
            graph = _record(call, fakes, self._decompositions)
            owners = _owners(graph)
            written = {}
            if any(_writes(inner) for inner in graph.nodes):
                # The same without writes, which become copies into the inputs at the end.
                functional = torch.func.functionalize(call)
                graph = make_fx(functional, self._decompositions)(*fakes).graph
                written = _take_copies(graph)
        for inner in graph.nodes:
            if inner.op == "call_function" and not _is_pure(inner.target):
                raise _Unfit(f"{inner.target} writes, or draws random numbers")
            if inner.op not in ("placeholder", "call_function", "output"):
                raise _Unfit(f"{inner.op} in {node.target}")
        return _Template(graph, owners, written)

    def _placed(self, template: _Template, node: fx.Node, given: Sequence[_Value]) -> Any:
        """Replaces a call by the calls of a template; returns its result."""
        copies: dict[fx.Node, fx.Node] = {}
        inputs = iter(given)
        made: dict[object, object] = {}
        for inner in template.graph.nodes:
            if inner.op == "placeholder":
                copies[inner] = next(inputs).node
            elif inner.op == "call_function":
                copy = self._graph.node_copy(inner, copies.__getitem__)
                copy.meta = {"val": inner.meta["val"]}
                for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                    if key in node.meta:
                        copy.meta[key] = node.meta[key]
                copies[inner] = copy
        owners = iter(template.owners)

        def result(inner: fx.Node) -> Any:
            owner = next(owners)
            if isinstance(owner, int):
                whose = given[owner].owner
            else:
                whose = made.setdefault(owner, object())
            return _Value(copies[inner], inner.meta["val"], whose)

        for place, inner in template.written.items():
            self._write(given[place], copies[inner], inner.meta["val"])
        return fx.map_arg(template.graph.output_node().args[0], result)

    def _write(self, old: _Value, node: fx.Node, fake: torch.Tensor) -> None:
        """Gives a tensor a new value; nothing else may share its memory."""
        values = [one for each in self._values.values() for one in pytree.tree_leaves(each)]
        sharing = {one.node for one in values if isinstance(one, _Value) and one.owner is old.owner}
        if any(one.owner is old.owner for one in self._inputs) or not sharing <= {
            old.node,
            *self._current,
        }:
            raise _Unfit("a write into memory that others read")
        if _kind(fake)[:3] != _kind(old.fake)[:3]:
            raise _Unfit("a write that changes a tensor's form")
        self._current[old.node] = _Value(node, fake, old.owner)


def _record(
    call: Callable[..., Any], fakes: Sequence[torch.Tensor], decompositions: Decompositions
) -> fx.Graph:
    """Records the aten calls of a call. make_fx takes ten times as long for so few."""
    graph = fx.Graph()
    recorder = _Recorder(graph, decompositions)
    for fake in fakes:
        node = graph.placeholder("given")
        node.meta["val"] = fake
        recorder.nodes[id(fake)] = (fake, node)
    with recorder:
        result = call(*fakes)
    graph.output(pytree.tree_map(recorder.node_of, result))
    return graph


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ops that reach torch's dispatcher into a graph."""

    def __init__(self, graph: fx.Graph, decompositions: Decompositions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # By id: the tensor, kept alive so that its id is not reused, and its node.
        self.nodes: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        self._graph = graph
        self._decompositions = decompositions

    def node_of(self, value: Any) -> Any:
        """Returns the node of a tensor; other values unchanged."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.nodes:
            raise _Unfit("a tensor from outside of the graph")
        return self.nodes[id(value)][1]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Records an op, or the ops that it decomposes to."""
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        with self:
            parts = self._decompositions.get(func)
            result = NotImplemented if parts is None else parts(*args, **kwargs)
            if result is NotImplemented:
                result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = func(*args, **kwargs)
        if func is torch.ops.aten.detach.default:
            self.nodes[id(result)] = (result, self.node_of(args[0]))
            return result
        nodes = pytree.tree_map(self.node_of, (args, kwargs))
        name = func.overloadpacket.__name__
        node = self._graph.create_node("call_function", func, nodes[0], nodes[1], name)
        node.meta["val"] = result
        if isinstance(result, torch.Tensor):
            self.nodes[id(result)] = (result, node)
        elif isinstance(result, (tuple, list)):
            for place, one in enumerate(result):
                if isinstance(one, torch.Tensor):
                    pick = self._graph.call_function(operator.getitem, (node, place))
                    pick.meta["val"] = one
                    self.nodes[id(one)] = (one, pick)
        return result


def _kind(fake: torch.Tensor) -> tuple[Any, ...]:
    """Returns the properties of a fake tensor that its traces depend on."""
    return (fake.dtype, tuple(fake.shape), fake.stride(), fake.storage_offset(), str(fake.device))


def _fresh(fake: torch.Tensor) -> torch.Tensor:
    """Returns a fake tensor with new memory, because similar calls share one fake tensor."""
    steps = zip(fake.shape, fake.stride(), strict=True)
    span = 1 + sum((size - 1) * step for size, step in steps) if fake.numel() else 0
    offset = fake.storage_offset()
    memory = torch.empty(offset + span, dtype=fake.dtype, device=fake.device)
    return memory.as_strided(fake.shape, fake.stride(), offset)


def _is_pure(target: Any) -> bool:
    if target is operator.getitem:
        return True
    return (
        isinstance(target, torch._ops.OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _take_copies(graph: fx.Graph) -> dict[int, fx.Node]:
    """Removes the copies into inputs from a graph; returns the final value of each input."""
    places = {node: place for place, node in enumerate(graph.find_nodes(op="placeholder"))}
    written = {}
    for node in [*graph.nodes]:
        if node.target is torch.ops.aten.copy_.default and node.args[0] in places:
            target, source = node.args
            if source in places or places[target] in written:
                raise _Unfit("a copy of an input")
            written[places[target]] = source
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    return written


def _owners(graph: fx.Graph) -> tuple[object, ...]:
    """Returns the owner of each result's memory; see _Template."""
    memory: dict[int, object] = {}
    for place, node in enumerate(graph.find_nodes(op="placeholder")):
        memory.setdefault(_storage(node), place)
    owners: list[object] = []
    for leaf in pytree.tree_leaves(graph.output_node().args[0]):
        if not isinstance(leaf, fx.Node):
            raise _Unfit(f"{leaf} instead of a tensor from {[n.target for n in graph.nodes]}")
        name = _storage(leaf)
        owners.append(memory.get(name, f"new {name}"))
    return tuple(owners)


def _storage(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise _Unfit("a result that is not a tensor")
    return int(value.untyped_storage()._cdata)

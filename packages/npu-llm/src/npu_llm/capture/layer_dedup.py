"""Traces identical layers once, and copies their calls for the others.

Tracing a layer takes half a second, and a model has dozens of identical ones. Inside
`deduplicate_layers` the first two and the last of each kind run. If their calls in the graph are
the same, the layers between them are inserted into the graph as copies with their own weights,
arguments and cache.

Layers are identical if their modules have the same classes, attributes (a number may be the layer's
own index) and parameter shapes. A layer is never copied if its call has effects that a copy would
lack, or reads a tensor that is neither its argument nor its weight nor its cache.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
    track_tensor_tree,
)
from torch.utils import _pytree as pytree
from transformers.cache_utils import Cache

__all__ = ["LayersDifferError", "deduplicate_layers"]

# Kinds with fewer layers are traced without copies.
_FEWEST = 4
_STACK = "nn_module_stack"
_MODULE_STATE = frozenset(vars(torch.nn.Module()))


class LayersDifferError(Exception):
    """The last layer of a kind is traced differently from the first, so copies may be wrong."""


@contextmanager
def deduplicate_layers(
    model: torch.nn.Module, *, on_copy: Callable[[torch.nn.Module], None] = lambda layer: None
) -> Iterator[None]:
    """Makes a trace inside the block run a few layers of each kind, and copy the others.

    Args:
        model: the model that is traced with make_fx.
        on_copy: called with each copied layer.

    Raises:
        LayersDifferError: raised by the trace if it must be repeated without copies.
    """
    kinds = [kind for layers in _stacks(model) for kind in _kinds(model, layers)]
    wrapped: list[torch.nn.Module] = []
    try:
        for kind in kinds:
            for layer in kind.layers:
                layer.module.forward = _forward(kind, layer, on_copy)
                wrapped.append(layer.module)
        yield
    finally:
        for module in wrapped:
            del module.forward


@dataclass
class _Layer:
    """One of a stack of layers."""

    module: torch.nn.Module
    path: str
    position: int

    def tensors(self) -> dict[int, str]:
        """Returns the names of its parameters and buffers by identity."""
        named = (
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        )
        return {id(tensor): name for name, tensor in named}

    def tensor(self, name: str) -> torch.Tensor:
        """Returns the parameter or buffer with a name."""
        path, _, last = name.rpartition(".")
        found: torch.Tensor = getattr(self.module.get_submodule(path), last)
        return found


@dataclass
class _Trace:
    """The effects of a layer's call on the graph.

    Attributes:
        layer: the layer.
        leaves: its flattened arguments.
        nodes: its calls that compute tensors, and the weights that they read.
        outside: nodes of its tensors from outside: arguments, then the previous cache.
        results: its flattened result.
        structure: structure of the results.
        cached: the modified layer of the cache; None if there is none.
        after: the cache's new key and value.
    """

    layer: _Layer
    leaves: list[Any]
    nodes: list[fx.Node]
    outside: list[fx.Node]
    ends: list[fx.Node]
    results: list[torch.Tensor | None]
    structure: Any
    cached: int | None
    after: tuple[torch.Tensor, ...]


@dataclass
class _Kind:
    """Identical layers in order, and the results of comparing their traces.

    Attributes:
        first: trace of the first layer; None before it ran, or if it cannot be copied.
        traced: number of layers that were compared with it.
        copied: number of copied layers.
        differs: whether the layers cannot be copied.
    """

    layers: list[_Layer]
    first: _Trace | None = None
    traced: int = 0
    copied: int = 0
    differs: bool = False


def _forward(
    kind: _Kind, layer: _Layer, on_copy: Callable[[torch.nn.Module], None]
) -> Callable[..., Any]:
    original = layer.module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        mode = get_proxy_mode()
        if mode is None or kind.differs:
            return original(*args, **kwargs)
        tracer = mode.tracer
        leaves = pytree.tree_leaves((args, kwargs))
        first = kind.first
        if first is not None and kind.traced >= 2 and layer is not kind.layers[-1]:
            copied = _copy(first, layer, leaves, tracer)
            if copied is None:
                raise LayersDifferError(layer.path)
            kind.copied += 1
            on_copy(layer.module)
            return copied
        result, trace = _traced(layer, original, args, kwargs, tracer)
        is_alike = trace is not None and (first is None or _is_same(first, trace, tracer))
        if not is_alike:
            if kind.copied:
                raise LayersDifferError(layer.path)
            kind.differs = True
        elif first is None:
            kind.first = trace
        kind.traced += 1
        return result

    return forward


# --------------------------------------------------------------------------------- identical layers


def _stacks(model: torch.nn.Module) -> Iterator[list[_Layer]]:
    """Yields the model's outermost module lists."""
    outer: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList) or len(module) < _FEWEST:
            continue
        if not any(path.startswith(f"{one}.") for one in outer):
            outer.append(path)
            yield [_Layer(one, f"{path}.{place}", place) for place, one in enumerate(module)]


def _kinds(model: torch.nn.Module, layers: Sequence[_Layer]) -> list[_Kind]:
    known = {id(module) for module in model.modules()}
    kinds: list[_Kind] = []
    for layer in layers:
        kind = next((one for one in kinds if _are_alike(one.layers[0], layer, known)), None)
        if kind is None:
            kinds.append(_Kind([layer]))
        else:
            kind.layers.append(layer)
    return [kind for kind in kinds if len(kind.layers) >= _FEWEST]


def _are_alike(one: _Layer, other: _Layer, known: set[int]) -> bool:
    """Whether two layers differ only in the values of their weights, and their index."""
    ours, theirs = dict(one.module.named_modules()), dict(other.module.named_modules())
    if ours.keys() != theirs.keys():
        return False
    for name, module in ours.items():
        match = theirs[name]
        if type(module) is not type(match) or module.training != match.training:
            return False
        for kind in ("_parameters", "_buffers"):
            left, right = getattr(module, kind), getattr(match, kind)
            if left.keys() != right.keys():
                return False
            if any(_shape(value) != _shape(right[key]) for key, value in left.items()):
                return False
        own = {key: value for key, value in vars(module).items() if key not in _MODULE_STATE}
        others = {key: value for key, value in vars(match).items() if key not in _MODULE_STATE}
        if own.keys() != others.keys():
            return False
        for key, value in own.items():
            at = value == one.position and others[key] == other.position if _is_int(value) else None
            if not at and not _is_equal(value, others[key], known):
                return False
    return True


def _shape(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.stride())


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_equal(left: Any, right: Any, known: set[int]) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, types.MethodType):
        return left.__func__ is right.__func__ and id(left.__self__) in known
    if isinstance(left, functools.partial):
        return _is_equal(
            (left.func, left.args, left.keywords), (right.func, right.args, right.keywords), known
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(
            _is_equal(*both, known) for both in zip(left, right, strict=True)
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(
            _is_equal(value, right[key], known) for key, value in left.items()
        )
    if isinstance(left, (int, float, str, bytes, bool, set, frozenset, torch.Size)):
        return bool(left == right)
    return False


# ------------------------------------------------------------------------------------------- traces


def _traced(
    layer: _Layer, original: Callable[..., Any], args: Any, kwargs: Any, tracer: Any
) -> tuple[Any, _Trace | None]:
    """Runs a layer; returns its result, and its trace if a copy would be equivalent."""
    leaves = pytree.tree_leaves((args, kwargs))
    cache = next((leaf for leaf in leaves if isinstance(leaf, Cache)), None)
    before = _cached(cache)
    arguments = [_node(leaf, tracer) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    state = _state(layer, cache)
    last = tracer.graph._root.prev
    result = original(*args, **kwargs)
    results, structure = pytree.tree_flatten(result)
    after = _cached(cache)
    changed = [
        place
        for place, (old, new) in enumerate(zip(before, after, strict=False))
        if any(one is not other for one, other in zip(old, new, strict=True))
    ]
    if (
        len(after) != len(before)
        or len(changed) > 1
        or state != _state(layer, cache)
        or not all(isinstance(one, torch.Tensor) or one is None for one in results)
    ):
        return result, None
    cached = changed[0] if changed else None
    past = () if cached is None else before[cached]
    kept = () if cached is None else after[cached]
    inner = [*arguments, *(_node(one, tracer) for one in past)]
    tensors = [one for one in (*leaves, *results, *kept) if isinstance(one, torch.Tensor)]
    last_ones = [_node(one, tracer) for one in tensors]
    nodes, node = [], last.next
    while node is not tracer.graph._root:
        if not _is_symbol(node):
            nodes.append(node)
        node = node.next
    outside = [one for one in inner if one is not None]
    ends = [one for one in last_ones if one is not None]
    reads = {read for one in nodes for read in one.all_input_nodes if not _is_symbol(read)}
    own = layer.tensors()
    weights = [getattr(tracer.root, str(one.target)) for one in nodes if one.op == "get_attr"]
    if (
        None in inner
        or None in last_ones
        or not {*reads, *ends} <= {*nodes, *outside}
        or any(one.op not in ("call_function", "get_attr") for one in nodes)
        or not all(id(one) in own for one in weights)
    ):
        return result, None
    return result, _Trace(layer, leaves, nodes, outside, ends, results, structure, cached, kept)


def _cached(cache: Cache | None) -> list[tuple[torch.Tensor, ...]]:
    """Returns the key and value of each layer of a cache, and its indexer's keys if it has them."""
    if cache is None:
        return []
    return [tuple(getattr(one, name) for name in _names_of(one)) for one in cache.layers]


def _names_of(layer: Any) -> list[str]:
    """Returns the attributes of a cache's layer that hold its tensors."""
    names = ["keys", "values", "indexer_keys"]
    return [name for name in names if getattr(layer, name, None) is not None]


def _state(layer: _Layer, cache: Cache | None) -> list[Any]:
    """Returns attributes of the layer and the cache that a call must not change."""
    owners: list[Any] = [*layer.module.modules()]
    found: list[Any] = []
    if cache is not None:
        owners.append(cache)
        # A cache's dictionary through which layers pass values to others.
        found += [len(one) for one in vars(cache).values() if isinstance(one, (dict, list))]
    return found + [{key: id(value) for key, value in vars(one).items()} for one in owners]


def _node(tensor: torch.Tensor, tracer: Any) -> fx.Node | None:
    slot = get_proxy_slot(tensor, tracer, None)
    return None if slot is None else slot.proxy.node


def _is_symbol(node: fx.Node) -> bool:
    """Whether a node is a size, shared by all layers."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _arguments_match(first: _Trace, leaves: Sequence[Any]) -> bool:
    if len(first.leaves) != len(leaves):
        return False
    for ours, theirs in zip(first.leaves, leaves, strict=True):
        if isinstance(ours, torch.Tensor) != isinstance(theirs, torch.Tensor):
            return False
        if not isinstance(ours, torch.Tensor):
            if ours is not theirs and (type(ours) is not type(theirs) or ours != theirs):
                return False
        elif _text(ours) != _text(theirs):
            return False
    return True


def _text(tensor: torch.Tensor) -> Any:
    """Returns a tensor's sizes as expressions; comparing them adds no conditions."""
    sizes = tuple(str(size) for size in (*tensor.shape, *tensor.stride()))
    return sizes, tensor.dtype, tensor.device


def _is_same(first: _Trace, other: _Trace, tracer: Any) -> bool:
    """Whether a layer's trace equals the copy that `_copy` would have created."""
    if not _arguments_match(first, other.leaves) or len(first.nodes) != len(other.nodes):
        return False
    if first.structure != other.structure or len(first.outside) != len(other.outside):
        return False
    if other.cached != _place(first, other.layer):
        return False
    match: dict[fx.Node, fx.Node] = dict(zip(first.outside, other.outside, strict=True))
    own, others = first.layer.tensors(), other.layer.tensors()
    for ours, theirs in zip(first.nodes, other.nodes, strict=True):
        if ours.op != theirs.op:
            return False
        if ours.op == "get_attr":
            names = (
                own[id(getattr(tracer.root, str(ours.target)))],
                others.get(id(getattr(tracer.root, str(theirs.target)))),
            )
            if names[0] != names[1]:
                return False
        elif ours.target != theirs.target or not _same_arguments(ours, theirs, match):
            return False
        match[ours] = theirs
    return [match.get(one) for one in first.ends] == other.ends


def _same_arguments(ours: fx.Node, theirs: fx.Node, match: dict[fx.Node, fx.Node]) -> bool:
    left, form = pytree.tree_flatten((ours.args, dict(ours.kwargs)))
    right, other = pytree.tree_flatten((theirs.args, dict(theirs.kwargs)))
    if form != other:
        return False
    for one, two in zip(left, right, strict=True):
        if isinstance(one, fx.Node) and isinstance(two, fx.Node):
            if _is_symbol(one):
                if str(one.meta["val"]) != str(two.meta.get("val")):
                    return False
            elif match.get(one) is not two:
                return False
        elif type(one) is not type(two) or one != two:
            return False
    return True


def _place(first: _Trace, layer: _Layer) -> int | None:
    """Returns the cache layer of a layer of the same kind."""
    if first.cached is None:
        return None
    return first.cached - first.layer.position + layer.position


def _copy(first: _Trace, layer: _Layer, leaves: Sequence[Any], tracer: Any) -> Any | None:
    """Inserts a layer's calls into the graph; returns its results, or None if not possible."""
    if not _arguments_match(first, leaves):
        return None
    cache = next((leaf for leaf in leaves if isinstance(leaf, Cache)), None)
    place = _place(first, layer)
    entry = None if cache is None or place is None else cache.layers[place]
    outside = [_node(leaf, tracer) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if entry is not None:
        outside += [_node(getattr(entry, name), tracer) for name in _names_of(entry)]
    if None in outside or len(outside) != len(first.outside):
        return None
    match: dict[fx.Node, Any] = dict(zip(first.outside, outside, strict=True))
    names = first.layer.tensors()
    for node in first.nodes:
        if node.op == "get_attr":
            name = names[id(getattr(tracer.root, str(node.target)))]
            copied = _read_weight(tracer, f"{layer.path}.{name}", layer.tensor(name))
        else:
            args, kwargs = fx.map_arg(
                (node.args, dict(node.kwargs)), lambda one: match.get(one, one)
            )
            copied = tracer.graph.create_node(node.op, node.target, args, kwargs)
        copied.meta = {**node.meta, _STACK: _moved(node, first.layer, layer)}
        match[node] = copied

    made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    results = [None if one is None else _like(one) for one in first.results]
    made += [one for one in results if one is not None]
    if entry is not None:
        kept = [_like(one) for one in first.after]
        for name, tensor in zip(_names_of(entry), kept, strict=True):
            setattr(entry, name, tensor)
        made += kept
    for tensor, end in zip(made, first.ends, strict=True):
        if _node(tensor, tracer) is not match[end]:
            track_tensor_tree(tensor, fx.Proxy(match[end], tracer), constant=None, tracer=tracer)
    return pytree.tree_unflatten(results, first.structure)


def _read_weight(tracer: Any, name: str, weight: torch.Tensor) -> fx.Node:
    """Returns a node that reads a weight; a tracer would search all weights for its name."""
    place = "_copied_" + name.replace(".", "_")
    while getattr(tracer.root, place, weight) is not weight:
        place += "_"
    setattr(tracer.root, place, weight)
    node: fx.Node = tracer.graph.create_node("get_attr", place, (), {})
    return node


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a new fake tensor of the same sizes, without its history."""
    with disable_proxy_modes_tracing(), tensor.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_like(tensor)


def _moved(node: fx.Node, first: _Layer, layer: _Layer) -> dict[str, Any]:
    """Returns the origin of a copied call."""
    moved = {}
    for key, (path, kind) in node.meta.get(_STACK, {}).items():
        if path == first.path or path.startswith(f"{first.path}."):
            path = layer.path + path.removeprefix(first.path)
            key = path
        moved[key] = (path, kind)
    return moved

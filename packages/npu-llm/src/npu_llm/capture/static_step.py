"""Converts a traced step to fixed sizes, with the past as an input.

Devices that need fixed sizes run each step over the whole capacity of a cache. The cache is host
memory, and an input of the program; a step's additions are outputs, which the host writes into the
cache's slots. Attention reads both as one tensor: an NPU moves keys into its local memory for each
product anyway, and by its compiler's estimate two products with the past and with the new tokens
take 4 % longer (SmolLM2-135M, NPU 4000, 2026-11).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from npu_llm.capture.graph_rewrites import Emitter
from npu_llm.capture.step import CapturedStep
from npu_llm.errors import CaptureError
from npu_llm.kv_cache.static_layout import LOOPED, CacheGroup, StaticLayout

__all__ = ["make_static"]

_aten = torch.ops.aten
# Shape-only calls between a cache and the attention that reads it.
_LOOKS = frozenset(
    {
        _aten.slice.Tensor,
        _aten.unsqueeze.default,
        _aten.expand.default,
        _aten.reshape.default,
        _aten.view.default,
        _aten.to.dtype,
        _aten.to.device,
        _aten.alias.default,
        _aten.contiguous.default,
        _aten.repeat_interleave.self_int,
    }
)


def make_static(captured: CapturedStep, dtype: torch.dtype = torch.float32) -> StaticLayout:
    """Makes a functional step static, in place.

    Afterwards the graph's placeholders are its inputs, then the past caches of each layer, then the
    states. Its outputs are the logits (1, kept, vocabulary) float32, then the additions to each
    group of caches, then the step's results after its caches: the states, if any.

    Args:
        captured: a step in float32.
        dtype: storage dtype of the caches.

    Raises:
        CaptureError: [static-cache] if a layer's longer cache is not its past followed by the new
            tokens.
    """
    graph = captured.graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    caches = placeholders[len(captured.inputs) :][: len(captured.caches)]
    (output,) = (node for node in graph.nodes if node.op == "output")
    logits, *longer = output.args[0]
    longer, rest = longer[: len(caches)], longer[len(caches) :]
    added = [_added(node, cache) for node, cache in zip(longer, caches, strict=True)]
    output.args = ((logits, *added, *rest),)
    joined = {
        whole: _Past(whole, cache, new)
        for whole, cache, new in zip(longer, caches, added, strict=True)
    }
    for node in list(graph.nodes):
        if node.target is _aten.scaled_dot_product_attention.default:
            _group_attention(node, joined)
    graph.eliminate_dead_code()
    names = captured.cache_names
    transposed = _transpose_caches(
        [cache for cache, name in zip(caches, names, strict=True) if name.endswith(".value")]
    )
    if dtype is not torch.float32:
        for cache in caches:
            _store_as(cache, dtype)
    groups: dict[CacheGroup, list[int]] = {}
    for index, cache in enumerate(captured.caches):
        is_so = caches[index] in transposed
        groups.setdefault(CacheGroup((), *cache, is_so), []).append(index)
    with graph.inserting_before(output):
        emit = Emitter(logits)
        packed = [emit(_aten.cat.default, [added[i] for i in them], 0) for them in groups.values()]
    output.args = ((logits, *packed, *rest),)
    graph.eliminate_dead_code()
    captured.graph_module.recompile()
    return StaticLayout(
        captured.inputs,
        tuple(
            replace(group, ports=tuple(names[index] for index in them))
            for group, them in groups.items()
        ),
        str(dtype).removeprefix("torch."),
        forms={"attention_mask": ("tokens", "whole")} if captured.reads_chunks else {},
        states={state.name: state.sizes for state in captured.states},
        most_tokens=(LOOPED if captured.reads_chunks else 1) if captured.states else None,
    )


def _added(longer: Any, cache: fx.Node) -> fx.Node:
    """Returns a step's addition to a cache."""
    is_joined = longer.target is _aten.cat.default and len(longer.args[0]) == 2
    parts: list[fx.Node] = list(longer.args[0]) if is_joined else [longer, longer]
    dim = longer.args[1] if len(longer.args) > 1 else 0
    if parts[0] is not cache or dim not in (2, -2):
        raise CaptureError(
            f"`{cache.name}` must be the past followed by the new tokens after a step, got "
            f"{longer.target}. Run such a model in the dynamic pipeline.",
            code="static-cache",
        )
    return parts[1]


@dataclass(frozen=True)
class _Past:
    """The parts of an attention tensor: a cache, followed by the new tokens."""

    whole: fx.Node
    cache: fx.Node
    added: fx.Node

    @property
    def heads(self) -> int:
        return int(self.cache.meta["val"].shape[1])

    @property
    def size(self) -> int:
        return int(self.cache.meta["val"].shape[3])


def _group_attention(node: fx.Node, joined: dict[fx.Node, _Past]) -> None:
    """Expands one attention call, if it reads concatenated caches with an additive mask."""
    arguments = [item for item in node.args if isinstance(item, fx.Node)]
    if len(arguments) != 4 or len(node.args) != 4 or node.kwargs.get("is_causal"):
        return
    query, key, value, mask = arguments
    keys, values = _origin(key, joined), _origin(value, joined)
    if keys is None or values is None or keys.heads != values.heads:
        return
    if mask.meta["val"].dtype is torch.bool:
        return
    heads, size = (int(query.meta["val"].shape[dim]) for dim in (1, 3))
    given: Any = node.kwargs.get("scale")
    scale = size**-0.5 if given is None else given
    with node.graph.inserting_before(node):
        emit = Emitter(node)
        batch, tokens = (emit(_aten.sym_size.int, query, axis) for axis in (0, 2))
        # Heads that share keys become rows of one product, instead of copies of the keys.
        scaled = emit(_aten.mul.Tensor, query, scale)
        rows = emit(_aten.reshape.default, scaled, [batch, keys.heads, -1, size])
        scores = emit(_aten.matmul.default, rows, emit(_aten.transpose.int, keys.whole, 2, 3))
        scores = emit(_aten.reshape.default, scores, [batch, heads, tokens, -1])
        scores = emit(_aten.add.Tensor, scores, mask)
        weights = emit(_aten._softmax.default, scores, -1, False)
        # An NPU reads both factors of a product along the summation axis.
        parts = [emit(_aten.transpose.int, part, 2, 3) for part in (values.cache, values.added)]
        across = emit(_aten.cat.default, parts, 3)
        whole = emit(_aten.sym_size.int, across, 3)
        weights = emit(_aten.reshape.default, weights, [batch, values.heads, -1, whole])
        seen = emit(_aten.matmul.default, weights, emit(_aten.transpose.int, across, 2, 3))
        result = emit(_aten.reshape.default, seen, [batch, heads, -1, values.size])
    node.replace_all_uses_with(result)
    node.graph.erase_node(
        node
    )  # attention may use random dropout, so the pass would not remove it as dead code


def _origin(argument: Any, joined: dict[fx.Node, _Past]) -> _Past | None:
    """Returns the concatenated cache behind an attention's argument, possibly repeated per head."""
    node = argument
    while isinstance(node, fx.Node) and node.target in _LOOKS:
        node = node.args[0]
    found = joined.get(node) if isinstance(node, fx.Node) else None
    if found is None or int(argument.meta["val"].shape[3]) != found.size:
        return None
    return found


def _transpose_caches(caches: list[fx.Node]) -> set[fx.Node]:
    """Stores caches transposed if all of their readers would transpose them.

    Args:
        caches: the value caches of each layer.

    Returns:
        The transposed caches.
    """
    transposed = set()
    for cache in caches:
        looks = [user for user in cache.users if user.target is _aten.transpose.int]
        sizes = [user for user in cache.users if user.target is _aten.sym_size.int]
        is_read_so = bool(looks) and len(looks) + len(sizes) == len(cache.users)
        if is_read_so:
            for user in sizes:
                axis = user.args[1]
                user.args = (cache, {2: 3, 3: 2}.get(axis, axis) if isinstance(axis, int) else axis)
            value = looks[0].meta["val"]
            for user in looks:
                user.replace_all_uses_with(cache)
            cache.meta["val"] = value
            transposed.add(cache)
    return transposed


def _store_as(cache: fx.Node, dtype: torch.dtype) -> None:
    """Changes the dtype of a cache's input, which is read as float32."""
    readers = [user for user in cache.users if user.target is not _aten.sym_size.int]
    with cache.graph.inserting_after(cache):
        read = cache.graph.call_function(_aten.to.dtype, (cache, torch.float32))
    read.meta["val"] = cache.meta["val"]
    with cache.meta["val"].fake_mode:
        cache.meta["val"] = cache.meta["val"].to(dtype)
    for reader in readers:
        reader.replace_input_with(cache, read)

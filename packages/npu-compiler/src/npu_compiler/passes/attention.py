"""Passes on attention: fuse spelled-out attention, detect causal masks, inline sparse blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npu_compiler.graph.nodes import add_call, inlined, is_call, is_static, sizes_of, value_of
from npu_compiler.passes.infra.pass_base import Facts, GraphPass
from npu_compiler.passes.infra.pattern import (
    FusePattern,
    Match,
    Pattern,
    Replacement,
    anything,
    call,
    either,
    number,
    optional,
)
from npu_compiler.passes.memory import written_arguments
from npu_ops.sparse_attention import sparse_attention

__all__ = ["FuseAttention", "OpenSparseAttention", "RecognizeCausalMask"]

# npu_compiler.graph.op_forms keeps calls of torch's attention function whole.

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_COPY = (aten.clone.default, aten.alias.default)
_CAST = aten._to_copy.default


def _flat(inner: Pattern, name: str) -> Pattern:
    """Matches a factor with the three axes of bmm."""
    whole = optional(_COPY, optional(aten.expand.default, inner))
    return call(_VIEWS, whole, anything(), name=name)


def _pattern() -> Pattern:
    product = call(
        aten.bmm.default,
        _flat(anything("query"), "flat_query"),
        _flat(anything("turned_key"), "flat_key"),
        name="product",
    )
    scores = call(_VIEWS, product, anything(), name="scores")
    scaled = either(
        call(aten.mul.Tensor, scores, number("factor")),
        call(aten.div.Tensor, scores, number("divisor")),
        scores,
    )
    masked = either(call(aten.add.Tensor, scaled, anything("mask"), commutes=True), scaled)
    weights = call(aten._softmax.default, optional(_CAST, masked), anything("axis"), anything())
    weights = optional(_COPY, optional(_CAST, weights))
    result = call(
        aten.bmm.default,
        _flat(weights, "flat_weights"),
        _flat(anything("value"), "flat_value"),
    )
    return call(_VIEWS, result, anything())


@dataclass(frozen=True)
class FuseAttention(FusePattern):
    """softmax(query key^T scale + mask) value -> torch.ops.npu_compiler.attention.

    Source: Vaswani et al., Attention Is All You Need, arXiv 1706.03762, equation 1.
    """

    name = "fuse_attention"
    kinds = frozenset({"inference"})
    patterns = (_pattern(),)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        scores, mask = match["scores"], match.named.get("mask")
        dtype = value_of(match["query"]).dtype
        parts = (match["turned_key"], match["value"])
        if any(value_of(part).dtype is not dtype for part in parts):
            return None
        if match["axis"] not in (-1, 3) or not _has_four_axes(match):
            return None
        if mask is not None and not _is_mask(mask, scores, dtype):
            return None
        *groups, rows, columns = sizes_of(scores)
        channels, width = sizes_of(match["flat_query"])[-1], sizes_of(match["flat_value"])[-1]
        query = _of_four_axes(match, "query", "flat_query", (*groups, rows, channels))
        key = _of_four_axes(match, "turned_key", "flat_key", (*groups, channels, columns))
        value = _of_four_axes(match, "value", "flat_value", (*groups, columns, width))
        scale = float(match.named.get("factor", 1.0)) / float(match.named.get("divisor", 1.0))
        args = (query, _turned_back(key, match), value, mask, False, scale, False)
        return Replacement(torch.ops.npu_compiler.attention.default, args)


def _is_mask(mask: Any, scores: fx.Node, dtype: torch.dtype) -> bool:
    """Whether a value added to the scores can be an attention mask."""
    if not isinstance(mask, fx.Node) or value_of(mask).dtype is not dtype:
        return False
    given, wanted = sizes_of(mask), sizes_of(scores)
    pairs = zip(reversed(given), reversed(wanted), strict=False)
    return len(given) <= 4 and all(a == 1 or str(a) == str(b) for a, b in pairs)


def _has_four_axes(match: Match) -> bool:
    """Whether the scores have four axes, and both products are over the last two."""
    scores, product = sizes_of(match["scores"]), sizes_of(match["product"])
    weights = sizes_of(match["flat_weights"])
    return len(scores) == 4 and _are_equal(weights, product) and _are_equal(scores[2:], product[1:])


def _are_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether sizes are equal, including symbolic ones."""
    return list(map(str, left)) == list(map(str, right))


def _of_four_axes(match: Match, name: str, flat: str, wanted: tuple[Any, ...]) -> fx.Node:
    """Returns a factor with these sizes, or 1 where it is broadcast over rows or heads.

    The factor's source may have other axes, because consecutive views have been merged, as from
    (rows, heads * channels, height, width) to (rows * heads, channels, tokens).
    """
    factor: fx.Node = match[name]
    given = sizes_of(factor)
    if len(given) == 4 and _are_equal(given[2:], wanted[2:]):
        groups = zip(given[:2], wanted[:2], strict=True)
        if all(size == 1 or str(size) == str(other) for size, other in groups):
            return factor
    root = match.root
    return add_call(root.graph, root, aten.view.default, (match[flat], list(wanted)), origin=root)


def _turned_back(turned: fx.Node, match: Match) -> fx.Node:
    """Returns the key from its transpose in the product."""
    if is_call(turned, aten.transpose.int) and isinstance(turned.args[0], fx.Node):
        axes = {int(axis) % 4 for axis in turned.args[1:3]}  # type: ignore[arg-type]
        if axes == {2, 3}:
            return turned.args[0]
    root = match.root
    return add_call(root.graph, root, aten.transpose.int, (turned, 2, 3), origin=root)


# The device's kernel then skips the masked half instead of reading a mask.


@dataclass(frozen=True)
class RecognizeCausalMask(GraphPass):
    """A constant boolean mask: lower triangular -> is_causal; all true -> no mask."""

    name = "recognize_causal_mask"
    stage = "fuse"
    kinds = frozenset({"inference"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        owner = graph.owning_module
        kinds: dict[str, str | None] = {}
        count = 0
        for node in graph.nodes:
            if not is_call(node, torch.ops.npu_compiler.attention.default):
                continue
            mask, is_causal = node.args[3], node.args[4]
            if is_causal or not isinstance(mask, fx.Node) or mask.op != "get_attr":
                continue
            name = str(mask.target)
            if name not in kinds:
                kinds[name] = _kind(getattr(owner, name, None))
            if kinds[name] is None or not is_static(node):
                continue
            node.update_arg(3, None)
            node.update_arg(4, kinds[name] == "causal")
            count += 1
        if count:
            graph.eliminate_dead_code()
        return count


def _kind(mask: object) -> str | None:
    """Returns "causal", "full", or None for any other mask."""
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or mask.dim() < 2:
        return None
    with unset_fake_temporarily():
        here = mask.cpu()
        if bool(here.all()):
            return "full"
        rows, columns = here.shape[-2:]
        if rows != columns:
            return None
        lower = torch.ones(rows, columns, dtype=torch.bool).tril()
        return "causal" if torch.equal(here, lower.expand_as(here)) else None


# On the host's cores the block stays one call, which writes its caches in place. A program returns
# the written caches, and copies at the graph's end store them in the inputs.

_BLOCK = torch.ops.npu.sparse_attention.default
_CACHES = ("kv_cache", "kr_cache", "idx_cache")


@dataclass(frozen=True)
class OpenSparseAttention(GraphPass):
    """Replaces the block by its parts if each cache is a separate tensor."""

    name = "open_sparse_attention"
    stage = "normalize"
    kinds = frozenset({"inference"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        if not facts.for_device:
            return 0
        return sum(
            _open(graph, node)
            for node in list(graph.nodes)
            if node.op == "call_function"
            and node.target is auto_functionalized_v2
            and node.args[0] is _BLOCK
        )


def _open(graph: fx.Graph, node: fx.Node) -> bool:
    plans = written_arguments(_BLOCK, node)
    if plans is None or any(view is not None for _, view in plans.values()):
        return False
    bases = cast(Any, node.kwargs["_all_bases"])
    given = {
        argument.name: bases[plans[argument.name][0]]
        if argument.name in plans
        else node.kwargs[argument.name]
        for argument in _BLOCK._schema.arguments
    }
    y, caches = _inlined(graph, node, given)
    results = {0: y} | {
        1 + plans[name][0]: cache for name, cache in zip(_CACHES, caches, strict=True)
    }
    for user in list(node.users):
        user.replace_all_uses_with(results[cast(int, user.args[1])])
        graph.erase_node(user)
    graph.erase_node(node)
    return True


def _inlined(
    graph: fx.Graph, node: fx.Node, given: dict[str, Any]
) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """Inlines the parts before a node; returns the nodes of y and of the written caches."""
    names = [name for name, value in given.items() if isinstance(value, fx.Node)]
    fixed = {name: value for name, value in given.items() if name not in names}

    def parts(*tensors: torch.Tensor) -> Any:
        return sparse_attention.functional(**dict(zip(names, tensors, strict=True)), **fixed)

    y, *caches = inlined(graph, node, parts, [given[name] for name in names])
    return y, tuple(caches)

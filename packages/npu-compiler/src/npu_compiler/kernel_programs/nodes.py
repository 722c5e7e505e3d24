"""Classifies nodes of a step; finds rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.attention import AttentionCall, attention_call
from npu_compiler.kernel_programs.calls import (
    ADDS,
    MULTIPLIES,
    is_moving,
    linear_call,
    norm_call,
    scalar,
    stripped,
)
from npu_compiler.kernel_programs.evaluation import Step, inputs_of
from npu_compiler.kernel_programs.experts import experts_call

__all__ = ["Nodes", "Rotation", "find_rotation", "is_vector"]

# y[i] = own[p, i] x[i] + other[p, i] x[partner[i]], for any calls: halves, interleaved pairs, a
# part of the head, any scaling.

_CHUNK = 512  # positions evaluated at once
_PROBED = (3, 7)  # positions used to find partners

# x (batch, tokens, width), positions (batch, tokens), tokens in the cache
# -> (batch, tokens, width)
Compute = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class Rotation:
    """Tables of a rotary embedding: (positions, size) float32 twice, and partners (size,) int32."""

    own: torch.Tensor
    other: torch.Tensor
    partner: torch.Tensor


def find_rotation(compute: Compute, *, heads: int, size: int, positions: int) -> Rotation | None:
    """Returns the rotation that a function applies to each head, or None."""
    partner = _partners(compute, heads, size, positions)
    if partner is None:
        return None
    index = torch.arange(size)
    is_first = (index <= partner).float()
    own, other = torch.empty(positions, size), torch.empty(positions, size)
    for start in range(0, positions, _CHUNK):
        at = torch.arange(start, min(start + _CHUNK, positions))[None]
        first = compute(is_first.repeat(heads).expand(1, at.shape[1], -1), at, 0)[0, :, :size]
        last = compute((1 - is_first).repeat(heads).expand(1, at.shape[1], -1), at, 0)[0, :, :size]
        chosen = is_first.bool()
        own[at[0]] = torch.where(chosen, first, last)
        other[at[0]] = torch.where(chosen, last, first)
    other[:, partner == index] = 0
    found = Rotation(own, other, partner.to(torch.int32))
    return found if _holds(found, compute, heads, size, positions) else None


def _partners(compute: Compute, heads: int, size: int, positions: int) -> torch.Tensor | None:
    """Returns the partner of each channel, (size,); the channel itself without one."""
    units = torch.eye(size).repeat(1, heads)[:, None]
    takes = torch.zeros(size, size, dtype=torch.bool)
    for place in _PROBED:
        at = torch.full((size, 1), min(place, positions - 1))
        takes |= compute(units, at, 0)[:, 0, :size].t() != 0
    index = torch.arange(size)
    takes[index, index] = False
    if int(takes.sum(1).max()) > 1:
        return None
    partner = torch.where(takes.any(1), takes.int().argmax(1), index)
    return partner if torch.equal(partner[partner], index) else None


def _holds(rotation: Rotation, compute: Compute, heads: int, size: int, positions: int) -> bool:
    """Whether the rotation equals the function for random values and lengths."""
    generator = torch.Generator().manual_seed(0)
    for past in (0, 1, max(0, positions - 5)):
        x = torch.randn(2, 5, heads * size, generator=generator)
        at = torch.randint(0, positions, (2, 5), generator=generator)
        by_head = x.view(2, 5, heads, size)
        own, other = rotation.own[at][:, :, None], rotation.other[at][:, :, None]
        expected = own * by_head + other * by_head[..., rotation.partner.long()]
        if not torch.allclose(compute(x, at, past), expected.flatten(2), atol=1e-5, rtol=1e-5):
            return False
    return True


_aten = torch.ops.aten


class Nodes:
    """The nodes of a step.

    `rows` depend on the tokens or the cache, including embeddings; `computed` have instructions so
    far.
    """

    def __init__(self, graph_module: fx.GraphModule, step: Step) -> None:
        """Finds the rows of a step."""
        self._module = graph_module
        self._graph = graph_module.graph
        self._step = step
        self.computed: set[fx.Node] = set()
        self._attentions: dict[fx.Node, AttentionCall | None] = {}
        self._numbers: dict[fx.Node, int] = {}
        self._known_numbers: dict[Any, int] = {}
        self.rows = self._find_rows()

    def _find_rows(self) -> set[fx.Node]:
        """Returns the nodes that depend on the tokens or the cache, including embeddings."""
        found: set[fx.Node] = set()
        starts = {self._step.tokens, *self._step.caches}
        for node in self._graph.nodes:
            before = inputs_of(node)
            is_embedding = node.target is _aten.embedding.default
            if is_embedding or any(one in found or one in starts for one in before):
                found.add(node)
        return found

    def is_anchor(self, node: fx.Node) -> bool:
        """Whether a node is a call with its own instruction."""
        return (
            node.target is _aten.embedding.default
            or linear_call(node) is not None
            or self.attention(node) is not None
            or experts_call(node) is not None
        )

    def attention(self, node: fx.Node) -> AttentionCall | None:
        """Returns the attention that ends at a node, or None."""
        if node not in self._attentions:
            self._attentions[node] = attention_call(node, self._module, self.rows)
        return self._attentions[node]

    def is_boundary(self, node: fx.Node) -> bool:
        """Whether a separate instruction computes a node's value."""
        return (
            node in self.computed
            or self.is_anchor(node)
            or norm_call(node, self._module) is not None
            or self.is_weighted(node)
            or self.is_joined(node)
        )

    def is_joined(self, node: fx.Node) -> bool:
        """Whether a node concatenates rows of several instructions, unchanged."""
        if node.target is not _aten.cat.default:
            return False
        sources = set()
        parts: Any = node.args[0]
        for part in parts:
            if part not in self.rows or not self._only_moves(part):
                return False
            sources.add(self._moved_from(part))
        return len(sources) > 1

    def is_weighted(self, node: fx.Node) -> bool:
        """Whether a node is a row plus or times a parameter vector."""
        if node.target not in ADDS and node.target not in MULTIPLIES:
            return False
        sides = [stripped(side) for side in node.args[:2]]
        return any(isinstance(one, fx.Node) and is_vector(one) for one in sides) and any(
            one in self.rows for one in sides
        )

    def _only_moves(self, node: fx.Node) -> bool:
        """Whether a node only moves elements of a value that an instruction computes."""
        while is_moving(node) and isinstance(node.args[0], fx.Node):
            if self.is_boundary(node):
                return True
            node = node.args[0]
        return self.is_boundary(node)

    def _moved_from(self, node: fx.Node) -> fx.Node:
        """Returns the nearest computed node before a node, skipping moves."""
        while is_moving(node) and node not in self.computed and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        return node

    def activation_source(self, node: fx.Node) -> fx.Node | None:
        """Returns the only value from which a node is computed elementwise, or None."""
        leaves: set[fx.Node] = set()
        calls = 0
        pending = [node]
        seen: set[fx.Node] = set()
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            if one is not node and (one not in self.rows or self.is_boundary(one)):
                if one in self.rows:
                    leaves.add(one)
                elif scalar(one, self._module) is None:
                    return None
                continue
            if one is not node and is_moving(one) and stripped(one) is one:
                leaves.add(one)
                continue
            calls += 1
            if calls > 16:
                return None
            pending += [stripped(before) for before in inputs_of(one)]
        (leaf,) = leaves if len(leaves) == 1 else (None,)
        if leaf is None or leaf is node or calls < 2:
            return None
        same = leaf.meta["val"].shape == node.meta["val"].shape
        return leaf if same else None

    def region(self, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node], Any]:
        """Returns the rows, tables and calls from which a node is computed, for comparison."""
        leaves: list[fx.Node] = []
        tables: list[fx.Node] = []
        known: dict[fx.Node, int] = {}
        signature: list[Any] = []

        def visit(one: fx.Node) -> int:
            if one in known:
                return known[one]
            is_leaf = one is not node and (
                one not in self.rows or self.is_boundary(one) or self._only_moves(one)
            )
            if is_leaf and one in self.rows:
                leaves.append(one)
                entry: Any = ("rows", self._step.roles(one))
            elif is_leaf:
                value = one.meta.get("val")
                if isinstance(value, torch.Tensor) and one.op != "get_attr":
                    tables.append(one)
                entry = ("table", self.number(one))
            else:
                inner = [visit(before) for before in inputs_of(one)]
                arguments = fx.map_arg((one.args, one.kwargs), lambda before: "node")
                entry = (str(one.target), inner, repr(arguments))
            known[one] = len(known)
            signature.append(entry)
            return known[one]

        visit(node)
        return leaves, tables, repr(signature)

    def number(self, node: fx.Node) -> int:
        """Returns a value number: equal for nodes with the same computation on the same inputs."""
        if node not in self._numbers:
            value = node.meta.get("val")
            if isinstance(value, (torch.SymInt, int)):
                key: Any = ("size", str(value))
            elif node.op != "call_function":
                key = (node.op, str(node.target))
            else:
                key = (node.target, repr(fx.map_arg((node.args, node.kwargs), self._numbered)))
            self._numbers[node] = self._known_numbers.setdefault(key, len(self._known_numbers))
        return self._numbers[node]

    def _numbered(self, node: fx.Node) -> str:
        return f"node {self.number(node)}"

    def rows_of(self, node: fx.Node) -> tuple[str, ...]:
        """Returns the roles of a node's row dimensions."""
        return tuple(role for role in self._step.roles(node) if isinstance(role, str))


def is_vector(node: fx.Node) -> bool:
    """Whether a node is a model tensor with more than one element."""
    return node.op == "get_attr" and node.meta["val"].numel() > 1

"""Makes npu.rotary_embedding of rotary position embedding written out, in the form with halves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.passes.base import Facts, GraphPass
from npu_compiler.passes.nodes import (
    add_call,
    can_stand_for,
    is_call,
    returned_memory,
    sizes_of,
    value_of,
)
from npu_compiler.passes.pattern import Match, anything, call, find

__all__ = ["FuseRotaryEmbedding"]

aten = torch.ops.aten

_X = anything("x")
_TURNED = call(
    aten.cat.default,
    [
        call(aten.neg.default, call(aten.slice.Tensor, _X, anything("axis"), anything("middle"))),
        call(aten.slice.Tensor, _X, anything("axis"), 0, anything("middle")),
    ],
    anything(),
)
_PATTERN = call(
    aten.add.Tensor,
    call(aten.mul.Tensor, _X, anything("cos"), commutes=True),
    call(aten.mul.Tensor, _TURNED, anything("sin"), commutes=True),
    commutes=True,
)


@dataclass(frozen=True)
class FuseRotaryEmbedding(GraphPass):
    """x cos + turned(x) sin, where tables hold each angle twice -> npu.rotary_embedding.

    Source: Su et al., RoFormer, arXiv 2104.09864.
    """

    name = "fuse_rotary_embedding"
    stage = "fuse"

    def _rewrite(self, graph: fx.Graph, facts: Facts) -> int:
        returned = returned_memory(graph)
        count = 0
        for node in list(graph.nodes):
            if not is_call(node, aten.add.Tensor) or node._erased:
                continue
            match = find(_PATTERN, node, kept_ops=facts.kept_ops)
            if match is not None and _put(graph, match, returned):
                count += 1
        if count:
            graph.eliminate_dead_code()
        return count


def _put(graph: fx.Graph, match: Match, returned: set[fx.Node]) -> bool:
    x, root = match["x"], match.root
    sizes = sizes_of(x)
    if len(sizes) != 4 or not isinstance(sizes[-1], int) or sizes[-1] % 2:
        return False
    half = sizes[-1] // 2
    if match["axis"] not in (-1, 3) or match["middle"] != half:
        return False
    tables = [_table(graph, root, match[name], half) for name in ("cos", "sin")]
    if tables[0] is None or tables[1] is None:
        return False
    fresh = add_call(graph, root, torch.ops.npu.rotary_embedding.default, (x, *tables), origin=root)
    if not can_stand_for(fresh, root, returned):
        graph.erase_node(fresh)
        return False
    root.replace_all_uses_with(fresh)
    return True


def _table(graph: fx.Graph, root: fx.Node, table: object, half: int) -> fx.Node | None:
    """The first half of a table of shape (batch, 1, sequence, width) as (batch, sequence, half).

    The halves must be known to be equal: the table comes from a concatenation of one tensor with
    itself.
    """
    if not is_call(table, aten.unsqueeze.default) or table.args[1] != 1:
        return None
    inner = table.args[0]
    if not isinstance(inner, fx.Node) or value_of(inner).dim() != 3 or not _is_doubled(inner):
        return None
    return add_call(graph, root, aten.slice.Tensor, (inner, 2, 0, half), origin=root)


def _is_doubled(node: fx.Node) -> bool:
    """Whether a tensor's last axis holds the same values twice."""
    pointwise = (
        aten.cos.default,
        aten.sin.default,
        aten._to_copy.default,
        aten.mul.Tensor,
        aten.mul.Scalar,
    )
    while is_call(node, *pointwise):
        if len(node.all_input_nodes) != 1 or not isinstance(node.args[0], fx.Node):
            return False
        node = node.args[0]
    if node.op == "get_attr":
        return _holds_twice(getattr(node.graph.owning_module, str(node.target), None))
    if not is_call(node, aten.cat.default):
        return False
    parts = node.args[0]
    is_pair = isinstance(parts, (list, tuple)) and len(parts) == 2 and parts[0] is parts[1]
    return is_pair and len(node.args) > 1 and node.args[1] in (-1, value_of(node).dim() - 1)


def _holds_twice(table: object) -> bool:
    if not isinstance(table, torch.Tensor):
        return False
    with unset_fake_temporarily():
        first, second = table.cpu().chunk(2, -1)
        return torch.equal(first, second)

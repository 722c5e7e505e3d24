"""Makes npu.rotary_embedding of rotary position embedding written out, in the form with halves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.graph.nodes import add_call, is_call, sizes_of, value_of
from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.pattern import Match, anything, call

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
class FuseRotaryEmbedding(FusePattern):
    """x cos + turned(x) sin, where tables hold each angle twice -> npu.rotary_embedding.

    Source: Su et al., RoFormer, arXiv 2104.09864.
    """

    name = "fuse_rotary_embedding"
    patterns = (_PATTERN,)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        x, root = match["x"], match.root
        sizes = sizes_of(x)
        if len(sizes) != 4 or not isinstance(sizes[-1], int) or sizes[-1] % 2:
            return None
        half = sizes[-1] // 2
        if match["axis"] not in (-1, 3) or match["middle"] != half:
            return None
        whole = [_doubled_table(match[name]) for name in ("cos", "sin")]
        if not all(whole):
            return None
        tables = [
            add_call(root.graph, root, aten.slice.Tensor, (table, 2, 0, half), origin=root)
            for table in whole
        ]
        return Replacement(torch.ops.npu.rotary_embedding.default, (x, *tables))


def _doubled_table(table: object) -> fx.Node | None:
    """The table (batch, sequence, width) behind one of shape (batch, 1, sequence, width).

    The halves must be known to be equal: the table comes from a concatenation of one tensor with
    itself.
    """
    if not is_call(table, aten.unsqueeze.default) or table.args[1] != 1:
        return None
    inner = table.args[0]
    if not isinstance(inner, fx.Node) or value_of(inner).dim() != 3 or not _is_doubled(inner):
        return None
    return inner


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

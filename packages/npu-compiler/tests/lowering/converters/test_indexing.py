"""Gathers, scatters and embeddings against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import LoweringError
from npu_compiler.lowering import lower

ROWS = torch.tensor([0, 2, 1, 2])

INDEXING = {
    "x[i]": lambda x, i: x[i],
    "x[:,i]": lambda x, i: x[:, i],
    "x[i,i]": lambda x, i: x[i, i],
    "x[i[:,None],i[None]]": lambda x, i: x[i[:, None], i[None]],
    "x[i[:,None,None],-i[:2]]": lambda x, i: x[i[:, None, None], -i[:2]],
    "x[:,i[:2,None,None],i]": lambda x, i: x[:, i[:2, None, None], i],
    "x[i[:1],i[:,None]]": lambda x, i: x[i[:1], i[:, None]],
    "x[:,i,i]": lambda x, i: x[:, i, i],
    "x[i,:,i]": lambda x, i: x[i, :, i],
    "x[-i]": lambda x, i: x[-i],
    "x[-i,-i]": lambda x, i: x[-i, -i],
    "x.index_select(1,i)": lambda x, i: x.index_select(1, i),
    "x.gather(1,i[None,:3,None].expand(3,3,4))": lambda x, i: x.gather(
        1, i[None, :3, None].expand(3, 3, 4)
    ),
    "x.scatter(0,i[None,:3,None].expand(1,3,4),7)": lambda x, i: x.scatter(
        0, i[None, :3, None].expand(1, 3, 4), 7
    ),
    "x.scatter(0,i[None,:3,None].expand(1,3,4),x[:1]+1)": lambda x, i: x.scatter(
        0, i[None, :3, None].expand(1, 3, 4), x[:1] + 1
    ),
    "x.index_copy(0,i[:2],x[:2]+1)": lambda x, i: x.index_copy(0, i[:2], x[:2] + 1),
    "index_put(x,[i[:2]],x[:2]+1)": lambda x, i: torch.index_put(x, [i[:2]], x[:2] + 1),
    "index_put(x,[i[:2],i[:2]],x[0,0])": lambda x, i: torch.index_put(x, [i[:2], i[:2]], x[0, 0]),
    "index_put(x,[mask],7)": lambda x, i: torch.index_put(
        x, [x[..., 0] > 20], torch.tensor(7).to(x.dtype)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_indexing_equals_eager(lowers, dtype):
    lowers(INDEXING, torch.arange(48).reshape(3, 4, 4)[:, :3].contiguous().to(dtype), ROWS)


@pytest.mark.parametrize("call", [torch.index_select, torch.gather])
def test_picking_from_a_scalar_is_refused(call):
    example = torch.tensor(1.5), torch.tensor(0)
    traced = make_fx(lambda x, i: call(x, 0, i), tracing_mode="fake")(*example)
    with pytest.raises(LoweringError, match="a scalar cannot be gathered from"):
        lower(traced)


def test_rows_and_columns_of_a_mask_are_gathered_without_a_table(lowers):
    def columns(mask, rows):
        keys = torch.arange(mask.shape[1])
        return mask[rows[:, None, None, None], keys[None, None, None]]

    sizes = torch.ones(3, 5, dtype=torch.int64), torch.tensor([2, 0])
    given = torch.randint(0, 2, (4, 7)), torch.tensor([3, 1])
    lowered = lowers(columns, *sizes, dynamic=True, run_on=given)
    kinds = {node.get_type_name() for node in lowered.lowered.model.get_ops()}
    assert "Gather" in kinds
    assert "GatherND" not in kinds


def test_embedding_equals_eager(lowers):
    lowers(
        lambda w, i: F.embedding(i, w, padding_idx=0),
        torch.randn(9, 4),
        torch.randint(0, 9, (2, 5)),
    )


def test_unchecked_indexing_equals_eager(lowers):
    lowers(
        lambda x, i: torch.ops.aten._unsafe_index(x, [None, i[:, None], i]),
        torch.randn(2, 3, 3), ROWS,
    )  # fmt: skip


def test_one_hot_equals_eager(lowers):
    lowers(lambda i: torch.ops.aten.one_hot(i, 4), ROWS)


def test_dynamic_indices_serve_other_sizes(lowers):
    lowers(
        lambda w, i: w[i] * 2,
        torch.randn(9, 4), torch.randint(0, 9, (2, 5)),
        dynamic=True,
        run_on=(torch.randn(9, 4), torch.randint(0, 9, (3, 7))),
    )  # fmt: skip

"""Attention written as products and a softmax."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.passes.attention import FuseAttention, RecognizeCausalMask
from npu_compiler.passes.simplify import FoldConstants, SimplifyViews

PASSES = [SimplifyViews(), FuseAttention()]
ATTENTION = "npu_compiler.attention.default"
Q, K, V = (torch.randn(2, 4, n, 8) for n in (5, 6, 6))
MASK = torch.zeros(2, 1, 5, 6)
MASK[..., 4:] = -1e4


def attention(q, k, v, mask=None, scale=8**-0.5):
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if mask is not None:
        scores = scores + mask
    return torch.matmul(torch.softmax(scores, -1, dtype=torch.float32), v)


def test_plain_attention_becomes_one_call(rewrites):
    assert rewrites(attention, Q, K, V, passes=PASSES).ops == [ATTENTION]


def test_masked_attention_becomes_one_call(rewrites):
    assert rewrites(attention, Q, K, V, MASK, passes=PASSES).ops == [ATTENTION]


def test_scores_divided_by_a_root_become_one_call(rewrites):
    def function(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v

    assert rewrites(function, Q, K, V, passes=PASSES).ops == [ATTENTION]


def test_scores_without_a_scale_become_one_call(rewrites):
    function = lambda q, k, v, m: torch.softmax(q @ k.mT + m, -1) @ v  # noqa: E731
    assert ATTENTION in rewrites(function, Q, K, V, MASK, passes=PASSES).ops


def test_weights_that_are_returned_stay(rewrites):
    def function(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    assert rewrites(function, Q, K, V, passes=PASSES).count == 0


def test_softmax_over_queries_stays(rewrites):
    function = lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -2) @ v  # noqa: E731
    assert rewrites(function, Q, K, V, passes=PASSES).count == 0


def test_training_keeps_the_parts(rewrites):
    assert rewrites(attention, Q, K, V, passes=PASSES, kind="forward").count == 0


def test_factors_that_are_images_get_rows_and_heads(rewrites):
    # timm's efficientformer_v2: the two views, to heads and to bmm's axes, are one when fused.
    def function(q, k, v):
        k = k.relu().reshape(2, 4, 8, 6)
        v = v.relu().reshape(2, 4, 8, 6).permute(0, 1, 3, 2)
        return torch.softmax(q @ k * 0.5, -1) @ v

    images = [torch.randn(2, 32, 2, 3) for _ in range(2)]
    found = rewrites(function, Q, *images, passes=PASSES)
    assert ATTENTION in found.ops


def test_images_whose_axes_are_as_many_as_heads_and_tokens_get_theirs(rewrites):
    def function(q, k, v):
        k = k.relu().reshape(2, 1, 2, 2)
        return torch.softmax(q @ k, -1) @ v

    q, v = torch.randn(2, 1, 2, 2), torch.randn(2, 1, 2, 2)
    assert ATTENTION in rewrites(function, q, torch.randn(1, 2, 2, 2), v, passes=PASSES).ops


def test_keys_that_are_the_same_for_all_heads_stay_as_they_are(rewrites):
    function = lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v  # noqa: E731
    found = rewrites(function, Q, K[:, :1], V, passes=PASSES)
    assert ATTENTION in found.ops


def test_weights_that_mix_two_heads_stay(rewrites):
    def function(q, k, v):
        weights = torch.softmax(q @ k.mT, -1)
        return (weights.reshape(2, 2, 5, 12) @ v).reshape(2, 4, 5, 4)

    found = rewrites(function, Q, K, torch.randn(2, 2, 12, 8), passes=PASSES)
    assert ATTENTION not in found.ops


PASSES_RECOGNIZE_CAUSAL_MASK = [FoldConstants(), RecognizeCausalMask()]
QKV = tuple(torch.randn(1, 2, 6, 8) for _ in range(3))


def masked_attention(mask):
    def function(q, k, v):
        return torch.ops.npu_compiler.attention(q, k, v, mask(), False, None, False)

    return function


def flags(rewritten):
    (node,) = (n for n in rewritten.module.graph.nodes if "attention" in n.name)
    return node.args[3], node.args[4]


def test_lower_triangle_is_causal(rewrites):
    mask = lambda: torch.arange(6)[None, :] <= torch.arange(6)[:, None]  # noqa: E731
    assert flags(rewrites(masked_attention(mask), *QKV, passes=PASSES_RECOGNIZE_CAUSAL_MASK)) == (
        None,
        True,
    )


def test_mask_that_hides_nothing_is_none(rewrites):
    mask = lambda: torch.ones(1, 1, 6, 6, dtype=torch.bool)  # noqa: E731
    assert flags(rewrites(masked_attention(mask), *QKV, passes=PASSES_RECOGNIZE_CAUSAL_MASK)) == (
        None,
        False,
    )


@pytest.mark.parametrize("shift", [-1, 2])
def test_other_triangle_stays(rewrites, shift):
    mask = lambda: torch.arange(6)[None, :] <= torch.arange(6)[:, None] + shift  # noqa: E731
    assert rewrites(masked_attention(mask), *QKV, passes=PASSES_RECOGNIZE_CAUSAL_MASK).count == 0


def test_mask_that_is_an_input_stays(rewrites):
    def function(q, k, v, mask):
        return torch.ops.npu_compiler.attention(q, k, v, mask, False, None, False)

    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    assert rewrites(function, *QKV, mask, passes=PASSES_RECOGNIZE_CAUSAL_MASK).count == 0


npu = torch.ops.npu
BATCH, LENGTH, HIDDEN, RANK, HEADS, PLAIN, ROPE, LATENT = 2, 3, 40, 24, 5, 16, 8, 32
INDEX_HEADS, INDEX_WIDTH, PAGE, PAGES = 6, 20, 16, 7
TABLE = torch.tensor([[5, 1], [2, 6]])
HELD = torch.tensor([18, 4])


def layer(*, one_tensor=False):
    torch.manual_seed(0)
    widths = (LATENT, ROPE, INDEX_WIDTH)
    whole = torch.randn(PAGES, PAGE, 1, sum(widths))
    caches = whole.split(widths, -1)
    if not one_tensor:
        caches = [cache.clone() for cache in caches]
    at = HELD[:, None] + torch.arange(LENGTH)
    slots = TABLE.gather(1, at // PAGE) * PAGE + at % PAGE
    slots[1, 2] = -1
    angles = torch.rand(BATCH, LENGTH, ROPE // 2) * 6
    shapes = [
        (BATCH, LENGTH, HIDDEN), (HIDDEN, RANK), (RANK, HEADS * (PLAIN + ROPE)),
        (HEADS, PLAIN, LATENT), (HIDDEN, LATENT + ROPE), (RANK,), (LATENT,),
        (RANK, INDEX_HEADS * INDEX_WIDTH), (HIDDEN, INDEX_WIDTH), (INDEX_WIDTH,), (INDEX_WIDTH,),
        (HIDDEN, INDEX_HEADS),
    ]  # fmt: skip
    parts = [torch.randn(shape) / shape[0] ** 0.5 for shape in shapes]
    return [*parts, angles.cos(), angles.sin(), slots, *caches, TABLE, HELD + LENGTH]


def block(*tensors):
    return npu.sparse_attention(*tensors, 0.2, sparse_count=6) * 2


def results(function, device, **how):
    tensors = [tensor.to(device) for tensor in layer(**how)]
    with torch.no_grad():
        y = function(*tensors)
    return [part.cpu() for part in (y, *tensors[-5:-2])]


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_program_of_the_device_gives_the_result_and_the_written_caches(compiled, device):
    function = compiled(block, fullgraph=True, options={"target": "openvino"})
    torch.testing.assert_close(
        results(function, device), results(block, device), rtol=1e-4, atol=1e-5
    )
    assert function.programs == 1
    assert function.eager_ops == []


def test_the_block_stays_one_call_where_the_host_does_the_arithmetic(compiled, monkeypatch, on_npu):
    monkeypatch.delenv("NPU_COMPILE_TARGET")
    function = compiled(block, fullgraph=True)
    torch.testing.assert_close(results(function, "npu"), results(block, "npu"))
    assert ("npu.sparse_attention.default" in function.eager_ops) is not on_npu


def test_caches_that_are_views_of_one_tensor_keep_the_call(compiled):
    function = compiled(block, fullgraph=True, options={"target": "openvino"})

    def both(function):
        tensors = layer(one_tensor=True)
        with torch.no_grad():
            return [function(*tensors), *tensors[-5:-2]]

    torch.testing.assert_close(both(function), both(block))
    assert function.eager_ops == ["torch.ops.higher_order.auto_functionalized_v2"]

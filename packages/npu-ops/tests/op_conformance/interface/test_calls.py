"""The formulas against torch's, if torch has a second way to compute the same numbers."""

import pytest
import torch
from torch.nn import functional as F

from npu_ops.op_conformance.interface import calls


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_attention_of_lengths_is_attention_of_each_sequence():
    q, k, v = (random(7, 2, 4 + i)[..., :4] for i in range(3))
    got = calls.causal_attention_of_lengths(q, k, v, [3, 4])
    parts = [
        F.scaled_dot_product_attention(*(x[s].transpose(0, 1) for x in (q, k, v)), is_causal=True)
        for s in (slice(0, 3), slice(3, 7))
    ]
    torch.testing.assert_close(got, torch.cat([part.transpose(0, 1) for part in parts]))


def test_attention_with_logsumexp_is_attention():
    q, k, v = (random(2, 5, 3, 8) + i for i in range(3))
    got, sums = calls.attention_with_logsumexp(q, k, v, is_causal=True)
    expected = F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
    )
    torch.testing.assert_close(got, expected.transpose(1, 2))
    assert sums.shape == (2, 3, 5)


def test_paged_attention_reads_the_blocks_in_their_order():
    keys, values, query = random(6, 4, 2, 8), random(6, 4, 2, 9)[..., :8], random(1, 2, 8)
    got = calls.paged_attention(query, keys, values, torch.tensor([[5, 0]]), torch.tensor([6]))
    past = [torch.cat([cache[5], cache[0]])[:6].transpose(0, 1) for cache in (keys, values)]
    expected = F.scaled_dot_product_attention(query[0].unsqueeze(1), *past)
    torch.testing.assert_close(got[0], expected.squeeze(1))


def test_a_batch_norm_in_parts_is_a_batch_norm():
    x = random(4, 3, 5).requires_grad_()
    weight, bias = random(3), random(3)
    expected = F.batch_norm(x, None, None, weight, bias, training=True)
    halves = [calls.batch_norm_stats(half, 1e-5) for half in x.split(2)]
    mean, invstd = calls.batch_norm_gather_stats(
        *(torch.stack(part) for part in zip(*halves, strict=True)), torch.tensor([10.0, 10.0]), 1e-5
    )
    got = calls.batch_norm_elementwise(x, weight, bias, mean, invstd)
    torch.testing.assert_close(got, expected)
    seed = random(4, 3, 5) + 1
    (wanted,) = torch.autograd.grad(expected, x, seed)
    sum_dy, sum_dy_xmu, *_ = calls.batch_norm_backward_reduce(seed, x, mean, invstd)
    found = calls.batch_norm_backward_elementwise(seed, x, mean, invstd, weight, sum_dy, sum_dy_xmu)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "step, kind, states",
    [
        (calls.adam, torch.optim.Adam, 3),
        (calls.adamw, torch.optim.AdamW, 3),
        (calls.adagrad, torch.optim.Adagrad, 1),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_first_step_is_the_optimizers(step, kind, states):
    parameter = random(5).requires_grad_()
    parameter.grad = random(5) + 1
    mine, grad = parameter.detach().clone(), parameter.grad.clone()
    kind([parameter], lr=0.125, weight_decay=0.25).step()
    options = {"eps": 1e-10} if step is calls.adagrad else {}
    decay = {"weight_decay": 0.25} if step is not calls.adamw else {}
    extra = [] if step is not calls.adamw else [0.9, 0.999, 1e-8, 0.25]
    step(mine, grad, *(torch.zeros(5) for _ in range(states)), 1, 0.125, *extra, **decay, **options)
    torch.testing.assert_close(mine, parameter.detach())


def test_suppression_keeps_the_best_of_boxes_that_overlap():
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
    kept = calls.nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5)
    assert kept.tolist() == [1, 2]


def test_a_region_of_a_plane_has_the_planes_values():
    plane = torch.arange(8.0).expand(1, 1, 8, 8)  # the value is the column
    cells = calls.roi_align(plane, torch.tensor([[1.5, 1.5, 5.5, 5.5]]), [2, 2])
    torch.testing.assert_close(cells[0, 0], torch.tensor([[2.0, 4.0], [2.0, 4.0]]))


def test_penalties_fall_on_tokens_that_occurred():
    logits = torch.ones(2, 4)
    got = calls.penalize_repetition(
        logits,
        torch.tensor([0.5, 0.0]),
        torch.tensor([0.25, 0.0]),
        torch.tensor([2.0, 4.0]),
        torch.tensor([1, 3]),
        torch.tensor([2, 1]),
        [1, 1],
    )
    assert got.tolist() == [[1, 0.5 - 0.5 - 0.5, 1, 1], [1, 1, 1, 0.25]]

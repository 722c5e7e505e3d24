"""Each family of ops at several lengths: equal to eager, and one program per bucket.

Float inputs are padded with NaN (conftest), so a mask that is missing is seen.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

# Of conftest.LENGTHS, rounded to powers of two.
BUCKETS = 3

WEIGHT = torch.linspace(-1, 1, 24).reshape(4, 6)
TABLE = torch.linspace(-2, 2, 20 * 6).reshape(20, 6)
KERNEL = torch.linspace(-1, 1, 5 * 6 * 3).reshape(5, 6, 3)
MASK = torch.arange(40) % 3 > 0


def batches(length):
    return (torch.randn(3, length, 6),)


def both(length):
    return (torch.randn(length + 30, length, 6),)


def heads(length):
    return (torch.randn(2, 3, length, 24),)


def numbers(length):
    return (torch.randint(0, 20, (2, length)),)


def attention(x):
    q, k, v = x.split(8, -1)
    return F.scaled_dot_product_attention(q, k, v) * 1.0


def causal(x):
    q, k, v = x.split(8, -1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 1.0


def additive(x):
    q, k, v = x.split(8, -1)
    mask = torch.zeros(q.shape[2]).masked_fill(MASK[: q.shape[2]].logical_not(), -1e4)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, :].expand(q.shape[2], -1))


def masked_attention(x):
    q, k, v = x.split(8, -1)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=MASK[: q.shape[2]][None, :].expand(q.shape[2], -1)
    )


def by_hand(x):
    q, k, v = x.split(8, -1)
    return torch.softmax(q @ k.transpose(-1, -2) / 3, -1) @ v


# By what makes the input: the cases of one are compiled together, since each takes three programs.
CASES = {
    both: {
        "broadcast": lambda x: x + x[:, :1, :] - x[:1],
        "linear over two sizes": lambda x: F.linear(x, WEIGHT).relu(),
        "product of two sizes": lambda x: x @ x.transpose(-1, -2),
        "sum of all": lambda x: (x * 2).sum(),
        "mean of two sizes": lambda x: (x * 2).mean((0, 1), keepdim=True),
        "layer norm": lambda x: F.layer_norm(x, (6,)),
    },
    batches: {
        "pointwise": lambda x: F.gelu(x) * 2 + x.exp(),
        "linear": lambda x: F.linear(x, WEIGHT),
        "product over the size": lambda x: x.transpose(-1, -2) @ x,
        "sum": lambda x: (x * 2).sum(1),
        "mean": lambda x: (x * 2).mean(1),
        "greatest": lambda x: (x - 9).amax(1),
        "least": lambda x: (x + 9).amin(1),
        "any": lambda x: ((x * 2) > 1.5).any(1),
        "all": lambda x: ((x * 2) > -1.5).all(1),
        "logsumexp": lambda x: (x * 2).logsumexp(1),
        "softmax": lambda x: (x * 2).softmax(1),
        "log softmax": lambda x: (x * 2).log_softmax(1),
        "cumulative sum": lambda x: (x * 2).cumsum(1),
        "index from the end": lambda x: (x * 2)[:, torch.tensor([-1, 0, -2])],
        "last element": lambda x: (x * 2)[:, -1],
        "first element": lambda x: (x * 2)[:, 0],
        "without the last": lambda x: (x * 2)[:, :-1].softmax(1),
        "without the first": lambda x: (x * 2)[:, 1:].softmax(1),
        "every second": lambda x: (x * 2)[:, ::2].sum(1),
        "first part": lambda x: (x * 2)[:, :2],
        "something in front": lambda x: torch.cat([x[:, :1] * 3, x * 2], 1).softmax(1),
        "parts of a fixed size": lambda x: torch.cat([p * 2 for p in x.chunk(2, -1)], -1),
        "stack": lambda x: torch.stack([x * 2, x], 1),
        "padded by the model": lambda x: F.pad(x * 2, (0, 0, 2, 1), value=4.0).sum(1),
        "triangle": lambda x: (x @ x.transpose(-1, -2)).tril().sum(-1),
        "positions": lambda x: x * torch.arange(x.shape[1])[:, None],
        "convolution along the size": lambda x: F.conv1d(
            x.transpose(1, 2) * 2, KERNEL, padding=1
        ).relu(),
        "convolution with a stride": lambda x: F.conv1d(
            x.transpose(1, 2) * 2, KERNEL, stride=2, padding=1
        ).mean(-1),
        "bounded sizes": lambda x: x + TABLE[: x.shape[1]],
    },
    numbers: {
        "greatest integer": lambda x: (x - 30).amax(1) * 1.5,
        "least integer": lambda x: (x + 3).amin(1) * 1.5,
        "embedding": lambda x: F.embedding(x, TABLE) * 2,
        "embedding of positions": lambda x: (
            F.embedding(torch.arange(x.shape[1]), TABLE) + F.embedding(x, TABLE)
        ),
        "computed indices": lambda x: F.embedding((x - 5) % 20, TABLE) * 2,
        "integer division": lambda x: (40 // x.clamp(min=1)) * 1.5,
    },
    heads: {
        "attention": attention,
        "causal attention": causal,
        "attention with a mask": masked_attention,
        "attention with an additive mask": additive,
        "attention by hand": by_hand,
    },
}
OF_OTHER_INPUTS = {
    "group norm": (lambda x: F.group_norm(x, 3), lambda n: (torch.randn(n, 6, 4),)),
    "convolution": (lambda x: F.conv1d(x, KERNEL, padding=1), lambda n: (torch.randn(n, 6, 9),)),
    "pooling": (
        lambda x: F.max_pool2d(x * 2, 2) + F.avg_pool2d(x, 2),
        lambda n: (torch.randn(n, 2, 8, 8),),
    ),
}


@pytest.mark.parametrize("inputs", CASES, ids=lambda make: make.__name__)
def test_padding_stays_away(bucketed, inputs):
    functions = CASES[inputs]
    fast = bucketed(lambda x: {name: each(x) for name, each in functions.items()}, inputs)
    assert len(fast.records) == BUCKETS
    assert fast.eager_ops == []


@pytest.mark.parametrize("name", OF_OTHER_INPUTS)
def test_padding_stays_away_from_ops_over_batches_alone(bucketed, name):
    function, inputs = OF_OTHER_INPUTS[name]
    fast = bucketed(function, inputs)
    assert len(fast.records) == BUCKETS
    assert fast.eager_ops == []


REFUSED = {
    "variance": (lambda x: (x * 2).var(1), batches),
    "argmax": (lambda x: (x * 2).argmax(1).float() * 1.5, batches),
    "flipped": (lambda x: (x * 2).flip(1), batches),
    "norm over the size": (lambda x: F.group_norm(x.transpose(1, 2), 3), batches),
    "size as a number": (lambda x: x * x.shape[1], batches),
    "something behind": (lambda x: torch.cat([x * 2, x[:, :1]], 1), batches),
    "place in joined sizes": (lambda x: (x * 2).view(-1, 6)[40] + 1, both),
    "places in joined sizes": (
        lambda x: (x * 2).view(-1, 6).index_select(0, torch.arange(30, 60)),
        both,
    ),
    "triangle of joined sizes": (lambda x: (x * 2).view(-1, 6).tril(-20), both),
    "convolution over joined sizes": (
        lambda x: F.conv1d((x * 2).view(1, -1, 6).transpose(1, 2), KERNEL),
        both,
    ),
    "causal attention over joined sizes": (
        lambda x: causal((x * 2).view(1, 1, -1, 6).repeat(1, 1, 1, 4)),
        both,
    ),
    "cut in two": (lambda x: (x * 2).view(2, -1, 6).sum(1), lambda n: (torch.randn(2 * n, 6),)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_gets_a_program_per_size(bucketed, name):
    function, inputs = REFUSED[name]
    fast = bucketed(function, inputs, lengths=(11, 13, 11))
    assert len(fast.records) == 2


def test_one_size_is_padded_beside_one_that_is_not(bucketed):
    def turned(x):
        return (x * 2).flip(1)

    fast = bucketed(turned, lambda n: (torch.randn(n, 5, 6),), lengths=(11, 12, 13, 16))
    assert len(fast.records) == 1


def test_layers_over_batches(bucketed):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    fast = bucketed(model, lambda n: (torch.randn(n, 3, 8, 8),))
    assert len(fast.records) == BUCKETS
    assert fast.eager_ops == []

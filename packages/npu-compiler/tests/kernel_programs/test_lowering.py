"""Programs of a small decoder: their results, and decoders without a program."""

from collections import Counter

import pytest
import torch

from npu_compiler.errors import LoweringError
from npu_ops.kernel_programs.program import Rows
from npu_ops.kernel_programs.reference import ReferenceExecution

from .conftest import (
    HEADS,
    KEY_HEADS,
    POSITIONS,
    SIZE,
    VOCABULARY,
    causal,
    half_turned,
    interleaved,
)


def logits_of(program, weights, ids):
    """The program's result for a sequence, as a chunk and then token by token."""
    reference = ReferenceExecution(program, weights)
    reference.reserve(2)
    found = []
    for start, count in ((0, 7), *((place, 1) for place in range(7, len(ids)))):
        places = torch.arange(start, start + count)
        found.append(
            reference.step(
                Rows(
                    tokens=ids[places],
                    positions=places,
                    sequences=torch.zeros(count, dtype=torch.int32),
                    slots=places.int(),
                    block_tables=torch.arange(2, dtype=torch.int32)[None],
                    kept=torch.arange(count),
                )
            )
        )
    return torch.cat(found)


def expected_of(model, ids):
    count = len(ids)
    empty = torch.zeros(1, KEY_HEADS, 0, SIZE)
    places = torch.arange(count)
    with torch.no_grad():
        mask = torch.ones(1, count, dtype=torch.int64)
        return model(ids[None], mask, places[None], places, empty, empty)[0][0]


def windowed(mask, tokens):
    return causal(mask, tokens, window=5)


def added(mask, tokens):
    return torch.where(causal(mask, tokens), 0.0, torch.finfo(torch.float32).min)


def distant(mask, tokens):
    """Slopes on distances, as in ALiBi."""
    total = mask.shape[1]
    distance = torch.arange(total) - torch.arange(tokens)[:, None] - (total - tokens)
    slopes = 0.5 ** torch.arange(1, 5)
    return torch.where(causal(mask, tokens), slopes[:, None, None] * distance, -1e38)


def centered(x):
    """Layer norm in separate calls."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)


def by_heads(x):
    """Heads that change places, and a number for each of them."""
    heads = x.unflatten(-1, (4, 8))
    heads = torch.cat([heads[..., 2:, :], heads[..., :2, :]], -2)
    return (heads * torch.sigmoid(heads[..., :1])).flatten(-2)


def slopes_of(all_tokens):
    return 0.5 ** torch.arange(1, HEADS + 1)[:, None, None] * torch.arange(all_tokens)


def merged(q, keys, values, seen):
    """Heads and batch in one dimension, slopes added by the product, as in Bloom."""
    batch, total = q.shape[0], keys.shape[2]
    q, keys, values = (one.reshape(-1, *one.shape[2:]) for one in (q, keys, values))
    slopes = slopes_of(total).expand(batch, -1, -1, -1).reshape(batch * HEADS, 1, total)
    scores = slopes.baddbmm(q, keys.transpose(1, 2), beta=1.0, alpha=0.3)
    scores = scores.view(batch, HEADS, *scores.shape[1:])
    shares = torch.where(seen, scores, torch.finfo(torch.float32).min).softmax(-1)
    attended = shares.view(-1, *shares.shape[2:]) @ values
    return attended.view(batch, HEADS, *attended.shape[1:])


def scaled_with_slopes(q, keys, values, seen):
    scores = (q @ keys.transpose(2, 3) + slopes_of(keys.shape[2])) * 0.3
    return scores.masked_fill(~seen, -1e38).softmax(-1) @ values


def capped_between(q, keys, values, seen):
    scores = 0.2 * (q @ keys.transpose(2, 3))
    scores = torch.tanh(scores * 0.25) * 4.0 * 1.0
    return torch.where(seen, scores, -1e38).softmax(-1) @ values


# A step is traced in a second: each part of a decoder is in one, and parts that do not meet share.
KNOWN = {
    "halves": {},
    "layer norm in calls, square of a relu, neighbours of a part, window": {
        "inner": centered,
        "activation": lambda x: torch.relu(x).square(),
        "rotate": interleaved,
        "mask": windowed,
    },
    "columns side by side, gelu in calls, no rotation, numbers added": {
        "inner": by_heads,
        "activation": lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))),
        "rotate": lambda x, positions: x,
        "mask": added,
    },
    "merged heads, scaled": {"attend": merged, "inner": lambda x: x * 0.3},
    "slopes that are scaled, places with an offset": {
        "attend": scaled_with_slopes,
        "place": lambda positions: positions + 3,
    },
    "cap in calls": {"attend": capped_between},
    "slopes": {"mask": distant},
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_program_computes_what_the_model_does(lowered, name):
    model, program, weights = lowered(**KNOWN[name])
    ids = torch.arange(POSITIONS) * 7 % VOCABULARY
    found = logits_of(program, weights, ids)
    torch.testing.assert_close(found, expected_of(model, ids), rtol=1e-4, atol=1e-5)


def test_what_can_run_together_is_one_instruction(lowered):
    _, program, _ = lowered()
    kinds = Counter(type(one).__name__ for one in program.instructions)
    # Joined heads, attention's output with the sum, gate and up as one, down with the sum, logits.
    assert kinds == {
        "Embed": 1, "Linear": 5, "Rotate": 2, "Append": 1, "Attend": 1, "Keep": 2,
    }  # fmt: skip
    norms = [one.norm is not None for one in program.instructions if hasattr(one, "norm")]
    assert norms == [True, False, False, False, False]


def mean_of_tokens(x):
    return x + x.mean(1, keepdim=True)


def shifted(x):
    return torch.cat([x[:, 1:], x[:, :1]], 1)


def by_length(x, positions):
    return half_turned(x, positions) * (1 + 0 * positions.shape[1] + x.shape[2])


def blind(mask, tokens):
    return torch.zeros(1, 1, tokens, mask.shape[1])


def to_the_first(mask, tokens):
    return causal(mask, tokens) | (torch.arange(mask.shape[1]) < 2)


def of_the_whole_row(x):
    return x * torch.sigmoid(x.mean(-1, keepdim=True))


def over_tokens(q, keys, values, seen):
    scores = torch.where(seen, q @ keys.transpose(2, 3), -1e38)
    return scores.softmax(2) @ values


def powers(q, keys, values, seen):
    scores = torch.where(seen, (q @ keys.transpose(2, 3)) ** 3, -1e38)
    return scores.softmax(-1) @ values


def differing(mask, tokens):
    return causal(mask, tokens) & (torch.arange(mask.shape[1]) + torch.arange(4)[:, None, None] > 1)


UNKNOWN = {
    "a number of the whole row": ({"inner": of_the_whole_row}, "mean"),
    "shares over tokens": ({"attend": over_tokens}, "matmul"),
    "powers of scores": ({"attend": powers}, "matmul"),
    "heads that see different tokens": ({"mask": differing}, "scaled_dot_product_attention"),
    "places by the length": (
        {"place": lambda positions: positions * 0 + positions.shape[1] - 1},
        "embedding",
    ),
    "mean of tokens": ({"inner": mean_of_tokens}, "add"),
    "tokens that change places": ({"inner": shifted}, "cat"),
    "a call without a kernel": ({"inner": torch.sin}, "sin"),
    "rotation by the length": ({"rotate": by_length}, "mul"),
    "no mask": ({"mask": blind}, "scaled_dot_product_attention"),
    "a window of another form": ({"mask": to_the_first}, "scaled_dot_product_attention"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_models_are_refused_by_the_call(lowered, name):
    parts, call = UNKNOWN[name]
    with pytest.raises(LoweringError) as caught:
        lowered(**parts)
    assert caught.value.code == "not-row-wise"
    assert call in str(caught.value)
    assert caught.value.reason

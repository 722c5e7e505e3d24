"""Higher-order operators: programs around them, random numbers drawn once, torch's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

LINEAR = nn.Linear(6, 6)

DROPOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elements": lambda x: F.dropout(x, 0.5),
    "channels": lambda x: F.dropout1d(x[None], 0.5)[0],
    "after a product": lambda x: F.dropout(x @ torch.eye(8), 0.5) * 2,
    "twice": lambda x: F.dropout(F.dropout(x, 0.5), 0.3),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_checkpointed_dropout_is_the_same_in_both_directions(compiled, name):
    torch._dynamo.reset()
    fast = compiled(lambda x: checkpoint(DROPOUTS[name], x, use_reentrant=False))
    for _ in range(3):
        x = torch.rand(4, 8).add_(0.5).requires_grad_()
        y = fast(x)
        y.sum().backward()
        assert x.grad is not None
        # With y = x * noise, the gradient is the noise.
        torch.testing.assert_close(x.detach() * x.grad, y.detach())
        assert 0 < int((x.grad == 0).sum()) < 32


def test_checkpointed_attention_with_dropout_compiles(compiled):
    torch._dynamo.reset()

    def attend(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    compiled(lambda q: checkpoint(attend, q, use_reentrant=False))(q).sum().backward()
    assert q.grad is not None
    assert bool(q.grad.isfinite().all())


def scores(score: torch.Tensor, batch: Any, head: Any, i: Any, j: Any) -> torch.Tensor:
    return score + (i - j)


def attended(x: torch.Tensor) -> torch.Tensor:
    q = LINEAR(x).view(1, 1, -1, 6)
    return flex_attention(q, q, q, score_mod=scores)


FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "while_loop": lambda x: while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, LINEAR(x).tanh()), (torch.tensor(0), x)
    ),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: LINEAR(x).sin(), lambda x: x * 2, (x,)),
    "scan": lambda x: scan(lambda c, y: (c + y, (c * y).sin()), torch.zeros(6), LINEAR(x)),
    "flex_attention": attended,
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", FORMS)
def test_results_are_torchs(compiled, close, name):
    torch._dynamo.reset()
    fast = compiled(FORMS[name])
    with torch.no_grad():
        for sign in (1, -1, 1):
            x = torch.rand(4, 6) * sign
            close(fast(x), FORMS[name](x))

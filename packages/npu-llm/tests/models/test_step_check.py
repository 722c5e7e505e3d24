from dataclasses import replace

import pytest
import torch

from npu_llm.models.step_check import _judge, _Step
from npu_llm.verification.reference import TorchReference

ROWS, VOCABULARY = 12, 2000
# By how much rounding moves each token: one ten times as far as most.
MOVED = torch.tensor([0.02] * (ROWS - 1) + [0.1])


@pytest.fixture
def noise():
    """noise(shares): changes of rows by these shares of their norms, other ones at each call."""
    generator = torch.Generator().manual_seed(0)

    def drawn(shares):
        values = torch.randn(len(shares), VOCABULARY, generator=generator)
        return values / values.norm(dim=-1, keepdim=True) * shares[:, None]

    return drawn


@pytest.fixture
def reference(noise):
    logits = noise(torch.ones(ROWS))
    return TorchReference(
        ids=torch.arange(ROWS),
        rows=tuple(range(ROWS)),
        logits=logits,
        rounded=logits + noise(MOVED),
        heads=2,
        kv_heads=2,
        is_routed=False,
        precision="bfloat16",
        activation_group=64,
    )


def judged(reference, change):
    """Runs a step for each row, with logits that are off by a change."""
    steps = [
        _Step(f"token {row}", (reference.logits + change)[row : row + 1], (row,))
        for row in range(ROWS)
    ]
    return _judge(iter(steps), reference)


def test_rounding_may_move_another_token_most(reference, noise):
    """One token moves 5 times as far as its sample, others less: that is rounding, too."""
    shares = MOVED.flip(0)
    assert float(shares[0]) > 3 * float(MOVED[0])
    assert judged(reference, noise(shares)) is None


def test_step_that_is_farther_off_than_rounding_moves_any_token_is_wrong(reference, noise):
    shares = MOVED.clone()
    shares[3] = 0.4
    finding = judged(reference, noise(shares))
    assert finding.step == "token 3"


def test_steps_that_are_all_farther_off_than_by_rounding_are_wrong(reference, noise):
    """As after an exchange of rows of a weight: no step alone is beyond the worst token."""
    shares = torch.full((ROWS,), 0.2)
    finding = judged(reference, noise(shares))
    assert finding.step == "all steps together"
    assert "is off by 20.0% of its norm, while rounding explains 10.4%" in str(finding)


def test_float_activations_are_held_against_their_own_token(reference, noise):
    floats = replace(reference, activation_group=0)
    assert judged(floats, noise(MOVED.flip(0))).step == "token 0"
    assert judged(floats, noise(MOVED)) is None


def test_equal_logits_are_right(reference):
    assert judged(reference, torch.zeros(ROWS, VOCABULARY)) is None

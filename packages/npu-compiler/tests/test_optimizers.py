"""A compiled optimizer's step: weights as eager's, in the same memory, and no compile per step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
}

# Imports and files that torch itself reads during tracing.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


class Training:
    """A small model with an optimizer."""

    def __init__(self, model, name, rate):
        self.model = model
        make, options = OPTIMIZERS[name]
        self.optimizer = make(model.parameters(), lr=rate, **options)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8)

    def backward(self, x):
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()


def pair(name, rate):
    """Two trainings from the same weights, each with a separate rate."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    rates = [rate.clone() if isinstance(rate, torch.Tensor) else rate for _ in range(2)]
    return Training(copy.deepcopy(model), name, rates[0]), Training(model, name, rates[1])


def step_both(reference, ours, step):
    x = torch.randn(5, 8)
    reference.backward(x)
    ours.backward(x)
    reference.optimizer.step()
    step()


def assert_equal_weights(ours, reference):
    # Adam divides by the root of a small gradient's square: rounding comes out near a rate of 0.05.
    for mine, theirs in zip(ours.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_step_follows_a_scheduler_without_a_compile(compiled, name):
    reference, ours = pair(name, torch.tensor(0.05))
    fast = compiled(ours.optimizer.step)
    places = [weight.data_ptr() for weight in ours.model.parameters()]
    counts = []
    for _ in range(4):
        step_both(reference, ours, fast.function)
        reference.scheduler.step()
        ours.scheduler.step()
        counts.append(fast.programs)
    assert_equal_weights(ours, reference)
    assert places == [weight.data_ptr() for weight in ours.model.parameters()]
    # The first step makes the momenta, so that a second graph serves those after it.
    assert counts[0] > 0
    assert counts[1:] == [counts[1]] * 3


@pytest.mark.parametrize("name", ["nesterov", "amsgrad"])
def test_compiled_step_with_a_number_as_rate_equals_eager(compiled, name):
    reference, ours = pair(name, 0.05)
    fast = compiled(ours.optimizer.step)
    counts = []
    for _ in range(4):
        step_both(reference, ours, fast.function)
        counts.append(fast.programs)
    assert_equal_weights(ours, reference)
    assert counts[1:] == [counts[1]] * 3


def test_compiled_step_reads_weights_that_were_changed_between_steps(compiled):
    reference, ours = pair("adamw", torch.tensor(0.05))
    fast = compiled(ours.optimizer.step)
    for factor in (1.0, 0.5, 2.0):
        with torch.no_grad():
            for training in (reference, ours):
                for weight in training.model.parameters():
                    weight.mul_(factor)
        step_both(reference, ours, fast.function)
    assert_equal_weights(ours, reference)


def test_step_with_forward_and_backward_in_one_function_equals_eager(compiled):
    reference, ours = pair("momentum", torch.tensor(0.05))

    def train(training, x):
        training.optimizer.zero_grad()
        loss = training.model(x).square().mean()
        loss.backward()
        training.optimizer.step()
        return loss.detach()

    fast = compiled(lambda x: train(ours, x))
    for _ in range(3):
        x = torch.randn(5, 8)
        torch.testing.assert_close(fast(x), train(reference, x))
    assert_equal_weights(ours, reference)
    assert fast.programs

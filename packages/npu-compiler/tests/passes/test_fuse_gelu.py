"""Gelu written out."""

from __future__ import annotations

import math

import pytest
import torch

from npu_compiler.passes.fuse_gelu import FuseGelu

PASS = FuseGelu()

FORMS = {
    "tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "tanh with products": lambda x: (
        0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))
    ),
    "erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "erf, half last": lambda x: x * (1.0 + torch.erf(x * math.sqrt(0.5))) * 0.5,
    "erf, halved": lambda x: x / 2 * (1.0 + torch.erf(x / math.sqrt(2.0))),
}


@pytest.mark.parametrize("form", FORMS)
def test_form_becomes_one_call(rewrites, form):
    assert rewrites(FORMS[form], torch.randn(3, 4), passes=PASS).ops == ["aten.gelu.default"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 0.4 * x * (1 + torch.erf(x / math.sqrt(2.0))),
        lambda x: 0.5 * x * (2 + torch.erf(x / math.sqrt(2.0))),
        lambda x: 0.5 * x * (1 + torch.erf(x / 1.5)),
        lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**2))),
    ],
    ids=["half", "one", "root", "exponent"],
)
def test_other_numbers_stay(rewrites, function):
    assert rewrites(function, torch.randn(3, 4), passes=PASS).count == 0


def test_of_two_tensors_stays(rewrites):
    function = lambda x, y: 0.5 * y * (1 + torch.erf(x / math.sqrt(2.0)))  # noqa: E731
    assert rewrites(function, torch.randn(3), torch.randn(3), passes=PASS).count == 0

"""Fusion of linear layers with the same input."""

import pytest
import torch

from npu_llm.compat.intel_npu_acceleration_library.optimizations import (
    fuse_linear_layers,
    horizontal_fusion_linear,
)
from npu_llm.errors import OptionError


class Parallel(torch.nn.Module):
    """Three layers of one input, and one after them; one layer is called twice."""

    def __init__(self):
        super().__init__()
        sizes = (4, 6, 2)
        self.inner = torch.nn.ModuleList(torch.nn.Linear(8, size, bias=size > 2) for size in sizes)
        self.twice = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(12, 3)

    def forward(self, x, scale):
        y = torch.cat([layer(x) for layer in self.inner], -1)
        return self.last(y * scale) + (self.twice(x) + self.twice(x)).sum()


def test_layers_of_one_input_become_one_with_equal_results():
    model, x = Parallel(), torch.randn(5, 8)
    expected = model(x, 2.0)
    fused = horizontal_fusion_linear(model)
    torch.testing.assert_close(fused(x, 2.0), expected)
    names = [name for name, layer in fused.named_modules() if isinstance(layer, torch.nn.Linear)]
    assert sorted(names) == ["fused_inner_0_inner_1_inner_2", "last", "twice"]
    assert [type(layer).__name__ for layer in model.inner] == ["Linear"] * 3


def test_layers_without_a_bias_have_none_when_fused():
    model = torch.nn.ModuleDict({n: torch.nn.Linear(4, 2, bias=False) for n in "ab"})
    fuse_linear_layers(model, dict(model.items()), ["a", "b"], "both")
    assert [name for name, _ in model.named_parameters()] == ["both.weight"]


def test_other_layers_are_refused():
    layers = {"a": torch.nn.Linear(4, 2), "b": torch.nn.Linear(5, 2), "c": torch.nn.ReLU()}
    for names in ("ab", "ac"):
        with pytest.raises(OptionError) as caught:
            fuse_linear_layers(torch.nn.ModuleDict(layers), layers, list(names), "both")
        assert caught.value.code == "fused-layers"


def test_a_model_that_cannot_be_traced_is_refused():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    for model in (Branch(), 3):
        with pytest.raises(OptionError, match=r"torch\.fx can trace") as caught:
            horizontal_fusion_linear(model)
        assert caught.value.code == "fused-layers"

"""keep_float32="auto": chosen by the first call's values, reported, and refused if impossible."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import npu_compiler
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.half_precision import TOLERANCE

AUTO = {"keep_float32": "auto"}


class RmsNorm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Planted(nn.Module):
    """A block with a norm that overflows if the first layer's weights are large."""

    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(8, 8), RmsNorm(), nn.Linear(8, 4)
        with torch.no_grad():
            self.first.weight.mul_(scale)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def explained(model, *inputs):
    with torch.no_grad():
        return npu_compiler.explain(model.eval(), *inputs, options={**AUTO, "target": "openvino"})


def test_what_overflows_is_kept_and_told():
    explanation = explained(Planted(scale=1000), torch.randn(3, 8))
    (graph,) = explanation.graphs
    assert "keeps norm: the first call's error is" in graph.auto_kept
    assert "instead of 1.0e+00" in graph.auto_kept
    assert graph.auto_kept in str(explanation)
    assert graph.auto_kept in explanation.to_json()
    kept = {node.op for node in explanation.eager if node.reason == "named by keep_float32"}
    assert "aten.pow.Tensor_Scalar" in kept
    assert not any("addmm" in op for op in kept)


def test_what_does_no_harm_stays_in_programs():
    explanation = explained(Planted(), torch.randn(3, 8))
    (graph,) = explanation.graphs
    assert "keeps nothing" in graph.auto_kept
    assert not explanation.eager


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_results_are_those_of_float32(device):
    model, x = Planted(scale=1000).eval().to(device), torch.randn(3, 8, device=device)
    compiled = torch.compile(model, backend="npu", options=AUTO)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_what_is_chosen_brings_outputs_within_the_tolerance():
    model, x = Planted(scale=1000).eval(), torch.randn(3, 8)
    names = explained(model, x).graphs[0].auto_kept.split("keeps ")[1].partition(":")[0]
    found = npu_compiler.check_half(model, (x,), keep_float32=names.split(", "))
    assert found.error <= TOLERANCE
    assert npu_compiler.check_half(model, (x,)).error > TOLERANCE


def test_other_weights_are_looked_at_again():
    model, x = Planted().eval(), torch.randn(3, 8)
    compiled = torch.compile(model, backend="npu", options={**AUTO, "target": "openvino"})
    with torch.no_grad(), collecting() as records:
        compiled(x)
        model.first.weight.mul_(1000)
        compiled(x)
    assert ["keeps nothing" in one.auto_kept for one in records] == [True, False]
    assert "keeps norm" in records[-1].auto_kept


def test_sizes_that_vary_are_chosen_for_by_the_first_call():
    model = Planted(scale=1000).eval()
    compiled = torch.compile(model, backend="npu", options=AUTO, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


class Dropped(nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, training=True)


@pytest.mark.parametrize(
    "model, x, said",
    [
        (Planted().bfloat16(), torch.randn(3, 8).bfloat16(), "float32.*bfloat16"),
        (Dropped(), torch.randn(3, 8), "random numbers"),
    ],
    ids=["dtype", "random"],
)
def test_a_choice_that_cannot_be_made_is_refused(model, x, said):
    compiled = torch.compile(model, backend="npu", options=AUTO)
    with (
        torch.no_grad(),
        pytest.raises(npu_compiler.LoweringError, match=rf"(?s){said}.*\[keep-auto\]"),
    ):
        compiled(x)


def test_training_is_refused():
    compiled = torch.compile(Planted(), backend="npu", options=AUTO)
    with pytest.raises(npu_compiler.LoweringError, match=r"torch.no_grad\(\).*\[keep-auto\]"):
        compiled(torch.randn(3, 8))


def test_an_export_is_one_program_and_refuses_it(tmp_path):
    with pytest.raises(npu_compiler.OptionError, match=r"check_half.*\[option-place\]"):
        npu_compiler.export(Planted(), (torch.randn(3, 8),), tmp_path / "m", keep_float32="auto")


def test_another_word_is_no_list_of_names():
    with pytest.raises(npu_compiler.OptionError, match=r"keep_float32.*'automatic'"):
        npu_compiler.CompilerConfig(keep_float32="automatic")


def test_gemma_compiles_by_itself_with_its_embedding_in_float32(overflowing_gemma):
    model = overflowing_gemma
    tokens = torch.randint(1, 50, (1, 6))
    call = {"use_cache": False, "return_dict": False}
    with torch.no_grad(), collecting() as records:
        compiled = torch.compile(model, backend="npu", options=AUTO)
        torch.testing.assert_close(
            compiled(tokens, **call)[0], model(tokens, **call)[0], rtol=1e-4, atol=1e-4
        )
    assert any("embed_tokens" in record.auto_kept for record in records)

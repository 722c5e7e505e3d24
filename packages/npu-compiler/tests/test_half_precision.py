"""Effects of half precision on models that are known to suffer from it, and their fixes."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from torch import nn

import npu_compiler
from npu_compiler.cli import main

_TOLERANCE = 1e-2


class RmsNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        square = x.pow(2)
        return x * torch.rsqrt(square.mean(-1, keepdim=True) + self.eps) * self.weight


class Planted(nn.Module):
    """A block of which one line is to overflow."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), RmsNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Masked(nn.Module):
    def forward(self, scores, mask):
        bias = torch.zeros_like(scores).masked_fill(mask, torch.finfo(torch.float32).min)
        return torch.softmax(scores + bias, -1)


class LongSum(nn.Module):
    def forward(self, x):
        return x.sum(1) / x.shape[1]


def line_of(function, text):
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


def mended(model, *inputs, **kwargs):
    """The check after mending, which must have been needed and must have helped."""
    plain = npu_compiler.check_half(model, inputs, kwargs=kwargs)
    found = npu_compiler.check_half(model, inputs, kwargs=kwargs, mend=True)
    assert found.findings == plain.findings
    assert found.keep_float32
    assert found.error <= _TOLERANCE, str(found)
    again = npu_compiler.check_half(model, inputs, kwargs=kwargs, keep_float32=found.keep_float32)
    assert again.error == found.error
    return plain, found


def test_model_without_large_or_small_values_has_no_finding():
    torch.manual_seed(0)
    found = npu_compiler.check_half(Planted(), (torch.randn(3, 8),), mend=True)
    assert found.is_harmless
    assert not found.findings
    assert not found.keep_float32
    assert found.error > 0


def test_square_of_large_activations_overflows_at_its_node_and_line():
    torch.manual_seed(0)
    model = Planted()
    with torch.no_grad():
        model.first.weight.mul_(1000)
    plain, found = mended(model, torch.randn(3, 8))
    first = plain.findings[0]
    assert first.op == "aten.pow.Tensor_Scalar"
    assert first.overflowed > 0
    line = line_of(RmsNorm.forward, "x.pow(2)")
    assert first.line.endswith(f"test_half_precision.py:{line}")
    assert first.module == "norm"
    assert found.keep_float32 == ("norm",)
    assert not plain.is_harmless


def test_square_of_small_activations_is_lost():
    torch.manual_seed(0)
    plain, found = mended(RmsNorm(8, eps=1e-12), torch.randn(3, 8) * 1e-5)
    assert plain.findings[0].op == "aten.pow.Tensor_Scalar"
    assert plain.findings[0].lost > 0
    assert found.keep_float32 == ("RmsNorm",)


def test_row_that_float32s_smallest_number_masks_whole_becomes_nan():
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0] = True
    plain, _ = mended(Masked(), torch.randn(2, 4), mask)
    assert plain.findings[0].op.startswith("aten.masked_fill")
    assert [call.invalid for call in plain.findings if "softmax" in call.op] == [4]


def test_number_that_overflows_and_is_not_used_is_no_finding():
    found = npu_compiler.check_half(
        Masked(), (torch.randn(2, 4), torch.zeros(2, 4, dtype=torch.bool))
    )
    assert not found.findings


def test_overflow_that_reaches_no_output_is_told_and_not_mended():
    mask = torch.eye(4, dtype=torch.bool)[:2]
    found = npu_compiler.check_half(Masked(), (torch.randn(2, 4), mask), mend=True)
    assert found.is_harmless
    assert found.findings
    assert not found.keep_float32


def test_infinite_mask_is_no_finding():
    scores = torch.randn(2, 4).masked_fill(torch.eye(4, dtype=torch.bool)[:2], -torch.inf)
    found = npu_compiler.check_half(nn.Softmax(-1), (scores,))
    assert found.is_harmless
    assert not found.findings


def test_sum_over_a_long_sequence_overflows():
    plain, _ = mended(LongSum(), torch.rand(1, 200_000, 2) + 0.5)
    assert plain.findings[0].op.startswith("aten.sum")


def test_t5s_feed_forward_overflows_and_is_mended():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2
    )
    model = transformers.T5EncoderModel(config).eval()
    with torch.no_grad():
        for block in model.encoder.block:
            block.layer[1].DenseReluDense.wi.weight.mul_(3000)
            block.layer[1].DenseReluDense.wo.weight.mul_(300)
    plain, found = mended(model, torch.randint(0, 50, (1, 6)))
    assert any(call.module.endswith("DenseReluDense.wo") for call in plain.findings)
    assert any(name.endswith("DenseReluDense.wo") for name in found.keep_float32)
    assert "encoder.final_layer_norm" in found.keep_float32
    assert not any("SelfAttention" in name for name in found.keep_float32)


def test_gemmas_scaled_embedding_overflows_and_is_mended(overflowing_gemma):
    tokens = torch.randint(1, 50, (1, 6))
    plain, found = mended(overflowing_gemma, tokens, use_cache=False, return_dict=False)
    first = plain.findings[0]
    assert (first.op, first.module) == ("aten.mul.Tensor", "embed_tokens")
    assert "modeling_gemma.py:" in first.line
    assert first.overflowed > 0
    assert "embed_tokens" in found.keep_float32
    assert any("layernorm" in name for name in found.keep_float32)


def test_what_is_kept_runs_between_programs_and_nothing_takes_it_in():
    torch.manual_seed(0)
    model, x = Planted().eval(), torch.randn(3, 8)
    explanation = npu_compiler.explain(
        model, x, options={"keep_float32": ["norm"], "target": "openvino"}
    )
    text = str(explanation)
    assert "named by keep_float32" in text
    assert "aten.pow.Tensor_Scalar" in text
    compiled = torch.compile(model, backend="npu", options={"keep_float32": ["norm"]})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_export_refuses_what_would_not_be_one_program(tmp_path):
    with pytest.raises(npu_compiler.LoweringError, match="named by keep_float32"):
        npu_compiler.export(Planted(), (torch.randn(3, 8),), tmp_path / "m", keep_float32=["norm"])


def test_unknown_module_is_an_error():
    with pytest.raises(npu_compiler.OptionError, match=r"norn.*norm"):
        npu_compiler.check_half(Planted(), (torch.randn(3, 8),), keep_float32=["norn"])


def test_model_in_another_dtype_is_an_error():
    with pytest.raises(npu_compiler.ExportError, match=r"float32.*bfloat16") as caught:
        npu_compiler.check_half(Planted().bfloat16(), (torch.randn(3, 8).bfloat16(),))
    assert caught.value.code == "half-dtype"


@pytest.fixture
def planted(tmp_path):
    """A saved program with a norm that overflows in half precision."""
    torch.manual_seed(0)
    model = Planted().eval()
    with torch.no_grad():
        model.first.weight.mul_(1000)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(3, 8),)), path)
    return path


def test_command_reads_a_saved_program(planted, capsys):
    assert main(["check", str(planted), "--half", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["keep_float32"] == ["norm"]
    assert content["is_harmless"]
    line = line_of(RmsNorm.forward, "x.pow(2)")
    assert content["findings"][0]["line"].endswith(f"test_half_precision.py:{line}")
    assert content["error_before"] > _TOLERANCE >= content["error"]


def test_command_says_what_is_wrong_where_and_what_mends_it(planted, capsys):
    assert main(["check", str(planted), "--half"]) == 1
    first, call, mended_line, option = capsys.readouterr().out.splitlines()
    assert first == "model.pt2: in half precision, outputs are off by 1.0e+00, more than 1e-02"
    assert "aten.pow.Tensor_Scalar" in call
    assert call.endswith("overflow")
    assert mended_line.startswith("with norm in float32, outputs are off by")
    assert mended_line.endswith("within 1e-02")
    assert option == 'as an option: {"keep_float32": ["norm"]}'


@pytest.mark.parametrize(
    "name, code",
    [("x.pt2", "saved-program"), ("none.pt2", "export-absent"), (".", "export-absent")],
)
def test_command_refuses_what_is_no_model(tmp_path, capsys, name, code):
    (tmp_path / "x.pt2").write_text("no program")
    assert main(["check", str(tmp_path / name), "--half"]) == 2
    assert code in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["-1", "nan"])
def test_command_refuses_a_budget_below_0(planted, capsys, budget):
    with pytest.raises(SystemExit):
        main(["check", str(planted), "--half", f"--half-budget={budget}"])
    assert "--half-budget must be at least 0 seconds" in capsys.readouterr().err


class Operations(nn.Module):
    """Indices, results in several parts, loops and constants of several types."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.rows, self.taps = nn.GRU(8, 8, batch_first=True), nn.Conv1d(8, 4, 3)

    def forward(self, tokens):
        x = self.rows(self.embed(tokens))[0]
        first, second = x.split(4, -1)
        values, places = torch.topk(first, 2)
        return self.taps(x.transpose(1, 2)), values, places, (second + 1) * 9e4


def test_a_folder_is_computed_operation_by_operation(tmp_path, capsys):
    torch.manual_seed(0)
    folder = tmp_path / "m"
    npu_compiler.export(Operations().eval(), (torch.randint(0, 50, (2, 6)),), folder)
    assert main(["check", str(folder), "--half", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["model"] == "Operations"
    assert content["error_before"] == "inf"
    assert {call["op"] for call in content["findings"]} >= {"Multiply"}
    assert any("test_half_precision.py" in call["line"] for call in content["findings"])
    assert len(content["calls"]) > 20
    assert content["left_out"] == ""


def test_a_compressed_folder_keeps_its_results(tmp_path, capsys):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).eval()
    npu_compiler.export(model, (torch.randn(2, 64),), tmp_path / "m", dtype="int8")
    assert main(["check", str(tmp_path / "m"), "--half"]) == 0
    assert "within 1e-02" in capsys.readouterr().out


def test_a_search_without_time_is_told(planted, capsys):
    assert main(["check", str(planted), "--half", "--half-budget", "0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "model.pt2: in half precision, not computed to its outputs",
        "left out for lack of time: the last 8 of 8 calls",
    ]

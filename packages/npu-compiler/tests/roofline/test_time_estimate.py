"""The compiler's estimate next to the lower bound, in its three forms."""

from __future__ import annotations

import json

import pytest
import torch

import npu_compiler
from npu_compiler.cli import main
from npu_compiler.target_compiler import Estimate, TargetReport


@pytest.fixture
def linear(tmp_path):
    npu_compiler.export(torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),), tmp_path / "m")
    return str(tmp_path / "m")


@pytest.fixture
def answer(monkeypatch):
    """Has a compiler answer with an estimate, or with a reason why it refuses."""

    def given(estimate, reason=""):
        report = TargetReport("5010", "fake-1", not reason, reason, "", None, 0, 1.0, estimate)
        monkeypatch.setattr(
            "npu_compiler.roofline.time_estimate.compile_if_installed", lambda *_: (report, None)
        )

    return given


def test_estimate_is_labelled_in_each_form(linear, answer, tmp_path, capsys):
    answer(Estimate(1.25, {"DMA": 60.0}, None, None, ("Sin",)))
    page = tmp_path / "page.html"
    assert main(["check", linear, "--estimate", "-o", str(page)]) == 0
    text = capsys.readouterr().out
    assert "estimate: 1.25 ms, DMA 60 %, without Sin" in text
    assert "lower bound: " in text
    assert main(["check", linear, "--estimate", "--json"]) == 0
    document = capsys.readouterr().out
    found = json.loads(document)
    assert found["seconds"] == 1.25e-3
    assert found["bound"]["least_seconds"] > 0
    for form in (text, document, page.read_text()):
        assert "the compiler's estimate, not a measurement" in form.replace("&#39;", "'")


def test_generation_without_published_figures_has_an_unknown_bound(linear, answer, capsys):
    answer(Estimate(1.25, {}, None, None, ()))
    assert main(["check", linear, "--estimate", "--target", "panther-lake"]) == 0
    text = capsys.readouterr().out
    assert "1.25 ms" in text
    assert "lower bound: unknown" in text


@pytest.mark.parametrize("reason, words", [("too large", "refuses it: too large"), ("", "none")])
def test_missing_estimate_has_its_reason(linear, answer, capsys, reason, words):
    answer(None, reason)
    assert main(["check", linear, "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] is None
    assert words in found["missing"]


def test_without_a_compiler_the_bound_is_left(linear, capsys):
    assert main(["check", linear, "--estimate"]) == 0
    text = capsys.readouterr().out
    assert "estimate: none. " in text
    assert "npu-compiler target install`" in text
    assert "lower bound: " in text


def test_sizes_that_vary_have_no_estimate(tmp_path, capsys):
    module = torch.nn.Linear(8, 4)
    npu_compiler.export(module, (torch.randn(2, 8),), tmp_path / "m", dynamic={"input": (0,)})
    assert main(["check", str(tmp_path / "m"), "--estimate"]) == 2
    assert "[estimate-sizes]" in capsys.readouterr().err


def test_a_module_and_its_folder_have_one_bound(tmp_path, capsys):
    module, x = torch.nn.Linear(8, 4).eval(), torch.randn(2, 8)
    bound = npu_compiler.estimate(module, (x,), target="3720").bound
    assert bound.traffic.total_bytes == (8 * 4 + 4) * 2 + 2 * 8 * 4 + 2 * 4 * 4
    assert [one.count for one in bound.products] == [2 * 8 * 4]
    npu_compiler.export(module, (x,), tmp_path / "m")
    page = tmp_path / "page.html"
    command = ["check", str(tmp_path / "m"), "--estimate", "--target", "3720"]
    assert main([*command, "--json", "-o", str(page)]) == 0
    content = json.loads(capsys.readouterr().out)["bound"]
    assert content["least_seconds"] == bound.seconds
    assert content["generation"]["chip"] == "Meteor Lake"
    assert "Meteor Lake" in page.read_text()
    assert "bound from published figures" in page.read_text()


def test_a_page_that_cannot_be_written_is_an_error(tmp_path, capsys):
    npu_compiler.export(torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),), tmp_path / "m")
    assert main(["check", str(tmp_path / "m"), "--estimate", "-o", str(tmp_path)]) == 2
    assert "[dump-output]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--half", "-o", "x.html"], ["--estimate", "--half"], ["--rules", "--half"]]
)
def test_options_that_do_not_go_together_are_refused(options, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path), *options])
    assert ended.value.code == 2
    assert capsys.readouterr().err

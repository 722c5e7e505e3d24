"""Checks of a model for an NPU: by the rules, by a compiler, and by both."""

from __future__ import annotations

import html
import inspect
import json

import pytest
import torch

import npu_compiler
from npu_compiler import readiness as module
from npu_compiler.cli import main
from npu_compiler.target_compiler import Estimate, TargetReport


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


@pytest.fixture
def answer(monkeypatch):
    """Has a compiler answer with a report of the given fields."""

    def given(**fields):
        def compile_model(model, target, options):
            assert target.number == "4000"
            accepted = {
                "target": target.number, "compiler": "fake-1", "is_accepted": True, "reason": "",
                "operation": "", "blob": None, "blob_bytes": 2_000_000, "duration_s": 1.5,
                "estimate": None,
            }  # fmt: skip
            return TargetReport(**{**accepted, **fields}), None

        monkeypatch.setattr(module, "compile_if_installed", compile_model)

    return given


def verdicts(readiness):
    return {finding.rule: finding.verdict for finding in readiness.findings}


def test_without_a_compiler_the_rules_answer_and_the_last_finding_says_how_to_have_one():
    found = npu_compiler.check(Net().eval(), (torch.randn(2, 8),))
    assert found.is_ready
    assert verdicts(found) == {
        "one program": "accepted",
        "static shapes": "accepted",
        "element types": "accepted",
        "no state": "accepted",
        "operation types": "accepted",
        "operand types": "accepted",
        "operand ranks": "accepted",
        "operand sizes": "accepted",
        "constant inputs": "accepted",
        "attributes": "accepted",
        "half precision": "accepted",
        "the NPU's compiler": "unknown",
    }
    assert "no rule refuses it for NPU 4000 (Lunar Lake)" in str(found)
    assert "npu-compiler target install`" in found.findings[-1].detail
    assert found.report is None


def test_rules_alone_are_asked_for(monkeypatch):
    monkeypatch.setattr(module, "compile_if_installed", lambda *_: pytest.fail("compiled"))
    found = npu_compiler.check(Net().eval(), (torch.randn(2, 8),), rules_only=True)
    assert "the NPU's compiler" not in verdicts(found)


def test_the_compilers_verdict_has_its_estimate(answer):
    answer(estimate=Estimate(1.25, {"DMA": 60.0}, None, None, ()))
    found = npu_compiler.check(Net().eval(), (torch.randn(2, 8),))
    assert found.is_ready
    assert found.report.compiler == "fake-1"
    assert "accepted by the compiler of NPU 4000 (Lunar Lake)" in str(found)
    assert "1.25 ms, DMA 60 % (the compiler's estimate, not a measurement)" in str(found)


def test_model_that_is_no_single_program_is_refused():
    class Broken(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x)[0]

    found = npu_compiler.check(Broken(), (torch.randn(3, 3),))
    rules = ("one program", "each call", "half precision")
    assert verdicts(found) == dict(zip(rules, ("refused", "refused", "accepted"), strict=True))
    assert "qr" in found.findings[0].detail


def test_each_call_of_a_refused_model_has_a_verdict():
    class Unknown(torch.nn.Module):
        def forward(self, x):
            return torch.erfinv(x.sin()) + torch.special.i0(x)

    found = npu_compiler.check(Unknown(), (torch.randn(3),))
    whole, taken, *refused, half = found.findings
    assert (whole.rule, whole.verdict) == ("one program", "refused")
    assert taken.verdict == "accepted"
    assert "1 aten.sin.default" in taken.detail
    assert [one.operation for one in refused] == ["aten.erfinv.default", "aten.i0.default"]
    assert all("test_readiness.py" in one.line for one in refused)
    assert (half.rule, half.verdict) == ("half precision", "accepted")


class Overflowing(torch.nn.Module):
    def forward(self, x):
        return x * torch.rsqrt((1e4 * x).pow(2).mean(-1, keepdim=True))


def test_a_model_that_overflows_is_not_ready(answer, tmp_path, capsys):
    answer()
    found = npu_compiler.check(Overflowing(), (torch.randn(2, 8),))
    assert found.is_accepted
    assert not found.is_ready
    assert found.verdict.endswith("by the compiler of NPU 4000 (Lunar Lake), but half precision "
                                  "changes its results")  # fmt: skip
    *_, half, compiler = found.findings
    assert (half.rule, half.verdict, compiler.verdict) == ("half precision", "refused", "accepted")
    assert "aten.pow.Tensor_Scalar" in half.detail
    assert "overflow" in half.detail
    assert 'Compile with {"keep_float32": ["Overflowing"]}' in half.detail
    # A folder has no inputs, so they are drawn.
    npu_compiler.export(Overflowing(), (torch.randn(2, 8),), tmp_path / "m")
    assert main(["check", str(tmp_path / "m")]) == 1
    line = next(x for x in capsys.readouterr().out.splitlines() if "half precision  " in x)
    assert line.startswith("NO")
    assert "test_readiness.py" in line
    assert main(["check", str(tmp_path / "m"), "--half-budget", "0"]) == 0
    assert "half precision" not in capsys.readouterr().out


def test_what_the_budget_leaves_out_is_named():
    found = npu_compiler.check(Net().eval(), (torch.randn(2, 8),), half_budget_s=1e-9)
    *_, half, _ = found.findings
    assert half.verdict == "unknown"
    assert half.detail == "left out after 1e-09 s: the last 3 of 3 calls; no overflow so far"
    doubled = npu_compiler.check(torch.nn.Linear(3, 3).double(), (torch.randn(3).double(),))
    assert doubled.findings[-1].detail.startswith(
        "left out: Linear: weights and inputs must be float32"
    )


def test_varying_sizes_are_refused(tmp_path, capsys):
    npu_compiler.export(Net().eval(), (torch.randn(2, 8),), tmp_path / "m", dynamic={"x": (0,)})
    assert main(["check", str(tmp_path / "m"), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["is_ready"] is False
    by_rule = {finding["rule"]: finding for finding in content["findings"]}
    assert by_rule["static shapes"]["verdict"] == "refused"
    assert by_rule["the NPU's compiler"]["verdict"] == "unknown"


def test_element_type_that_npus_lack_is_refused():
    class Double(torch.nn.Module):
        def forward(self, x):
            return (x.double() * 2).sin()

    found = npu_compiler.check(Double(), (torch.randn(3),))
    if "element types" not in verdicts(found):  # float64 may be refused before there is a program
        assert verdicts(found)["one program"] == verdicts(found)["each call"] == "refused"
    else:
        assert verdicts(found)["element types"] == "refused"
    assert not found.is_ready


class Choice(torch.nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x.char(), (x - 1).char())


def test_refused_operation_leads_to_its_node_and_python_line(tmp_path, capsys):
    npu_compiler.export(Choice(), (torch.randn(4),), tmp_path / "m", target="openvino")
    assert main(["check", str(tmp_path / "m"), "--json", "--target", "3720"]) == 1
    content = json.loads(capsys.readouterr().out)
    refused = [one for one in content["findings"] if one["verdict"] == "refused"]
    assert {one["rule"] for one in refused} == {"operand types"}
    first = refused[0]
    assert (first["operation"], first["node"]) == ("Select (opset1)", "where")
    assert (first["module"], first["judge"]) == ("Choice", "rules")
    file, _, line = first["line"].rpartition(":")
    source = inspect.getsourcelines(Choice.forward)[1] + 1
    assert file.endswith("test_readiness.py")
    assert int(line) == source
    assert "ops.td:" in first["source"]
    assert "Cast the operand" in first["detail"]


class Versions(torch.nn.Module):
    def forward(self, x, part):
        written = torch.slice_scatter(x, part, 1, 1, 5, 2)
        written = torch.select_scatter(written, part[:, 0], 1, -1)
        written = torch.index_put(written, (torch.tensor([0, 1]),), part[:2, :1])
        return written, x.unsqueeze(1).max(1)[0], x.var(1)


def test_calls_become_versions_of_operations_that_the_importer_takes():
    found = npu_compiler.check(Versions(), (torch.randn(3, 6), torch.randn(3, 2)))
    assert verdicts(found)["operation types"] == "accepted", str(found)


def test_the_compilers_refusal_leads_to_node_module_and_python_line(answer, tmp_path, capsys):
    npu_compiler.export(Net().eval(), (torch.randn(2, 8),), tmp_path / "m")
    name = "linear_1/aten.linear.default/MatMul"
    answer(is_accepted=False, reason=f"cannot split {name}", operation=name)
    assert main(["check", str(tmp_path / "m"), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    found = content["findings"][-1]
    assert (found["verdict"], found["judge"]) == ("refused", "compiler")
    assert found["operation"] == "MatMul (opset1)"
    assert (found["node"], found["module"]) == ("linear_1", "second")
    assert "test_readiness.py:" in found["line"]
    assert "cannot split" in found["detail"]
    assert "The rules accept it; the compiler decides." in found["detail"]
    assert content["report"]["operation"] == name


def test_the_compiler_decides_where_the_rules_refuse_and_both_are_shown(answer, tmp_path, capsys):
    npu_compiler.export(Choice(), (torch.randn(4),), tmp_path / "m", target="openvino")
    answer()
    assert main(["check", str(tmp_path / "m")]) == 0
    text = capsys.readouterr().out
    assert "accepted by the compiler" in text
    assert "NO  operand types" in text
    assert "The rules refuse it (operand types); the compiler decides." in text


def test_generation_without_rules_is_left_to_its_compiler():
    found = npu_compiler.check(Net().eval(), (torch.randn(2, 8),), target="panther-lake")
    assert verdicts(found)["operation types"] == "unknown"
    assert found.is_ready


def test_unknown_target_is_refused_before_anything_is_done():
    with pytest.raises(npu_compiler.OptionError, match=r"got '4711'.*\[unknown-target\]"):
        npu_compiler.check(Net(), (torch.randn(2, 8),), target="4711")


def test_folder_that_is_none_is_an_error(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "none"):
        assert main(["check", str(path)]) == 2
        error = capsys.readouterr().err
        assert str(path) in error
        assert "[export-absent]" in error


def test_a_saved_program_is_checked_and_its_page_has_rule_call_and_line(tmp_path, capsys):
    file, page = tmp_path / "<b>.pt2", tmp_path / "page.html"
    torch.export.save(torch.export.export(Choice(), (torch.randn(4),)), file)
    refused = main(["check", str(file), "--target", "3720", "-o", str(page), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], refused) == ("<b>.pt2", 0 if found["is_ready"] else 1)
    text = page.read_text()
    assert "&lt;b&gt;.pt2" in text
    assert "<b>" not in text
    assert all(html.escape(one["detail"], quote=False) in text for one in found["findings"])


def test_a_page_of_a_refusal_leads_to_the_python_line(tmp_path, capsys):
    npu_compiler.export(Choice(), (torch.randn(4),), tmp_path / "m", target="openvino")
    page = tmp_path / "page.html"
    command = ["check", str(tmp_path / "m"), "--target", "3720"]
    assert main([*command, "-o", str(page)]) == 1
    assert "refused by the rules for NPU 3720" in page.read_text()
    assert "test_readiness.py:" in page.read_text()
    assert main([*command, "-o", str(tmp_path)]) == 2
    assert "[dump-output]" in capsys.readouterr().err


def test_a_file_that_is_no_saved_program_is_told(tmp_path, capsys):
    (tmp_path / "x.pt2").write_bytes(b"PK")
    assert main(["check", str(tmp_path / "x.pt2")]) == 2
    assert "[saved-program]" in capsys.readouterr().err

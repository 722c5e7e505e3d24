"""Whether an NPU accepts a model, found out without one."""

from __future__ import annotations

import html
import inspect
import json
import subprocess

import pytest
import torch

import npu_compiler
from npu_compiler.cli import main
from npu_compiler.readiness import rules as module


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


@pytest.fixture
def without_plugin(monkeypatch):
    """Leaves out the run on OpenVINO's plugin for NPUs, which is a process for each check."""
    done = subprocess.CompletedProcess([], 0, '{"step": "done", "error": 0.0}', "")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: done)


def verdicts(readiness):
    return {finding.rule: finding.verdict for finding in readiness.findings}


def test_static_model_is_accepted_and_what_needs_an_npu_is_named():
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
        "the NPU plugin": "accepted",
        "equal results": "accepted",
        "the driver's compiler": "unknown",
    }
    assert "nothing stands against an NPU" in str(found)


def test_model_that_is_no_single_program_is_refused():
    class Broken(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x)[0]

    found = npu_compiler.check(Broken(), (torch.randn(3, 3),))
    assert verdicts(found) == {"one program": "refused"}
    assert "qr" in found.findings[0].detail


def test_varying_sizes_are_refused(tmp_path, capsys):
    npu_compiler.export(Net().eval(), (torch.randn(2, 8),), tmp_path / "m", dynamic={"x": (0,)})
    assert main(["check", str(tmp_path / "m"), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["is_ready"] is False
    by_rule = {finding["rule"]: finding for finding in content["findings"]}
    assert by_rule["static shapes"]["verdict"] == "refused"
    assert by_rule["the NPU plugin"]["verdict"] == "unknown"


def test_element_type_that_npus_lack_is_refused():
    class Double(torch.nn.Module):
        def forward(self, x):
            return (x.double() * 2).sin()

    found = npu_compiler.check(Double(), (torch.randn(3),))
    if "element types" not in verdicts(found):  # float64 may be refused before there is a program
        assert verdicts(found) == {"one program": "refused"}
    else:
        assert verdicts(found)["element types"] == "refused"
    assert not found.is_ready


class Choice(torch.nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x > 1, x < -1)


@pytest.mark.usefixtures("without_plugin")
def test_refused_operation_leads_to_its_node_and_python_line(tmp_path, capsys):
    npu_compiler.export(Choice(), (torch.randn(4),), tmp_path / "m", target="openvino")
    assert main(["check", str(tmp_path / "m"), "--json", "--generation", "3720"]) == 1
    content = json.loads(capsys.readouterr().out)
    refused = [one for one in content["findings"] if one["verdict"] == "refused"]
    assert {one["rule"] for one in refused} == {"operand types"}
    first = refused[0]
    assert (first["operation"], first["node"]) == ("Select (opset1)", "where")
    file, _, line = first["line"].rpartition(":")
    source = inspect.getsourcelines(Choice.forward)[1] + 1
    assert file.endswith("test_rules.py")
    assert int(line) == source
    assert "ops.td:" in first["source"]
    assert "Cast the operand" in first["detail"]


class Versions(torch.nn.Module):
    def forward(self, x, part):
        written = torch.slice_scatter(x, part, 1, 1, 5, 2)
        written = torch.select_scatter(written, part[:, 0], 1, -1)
        written = torch.index_put(written, (torch.tensor([0, 1]),), part[:2, :1])
        return written, x.unsqueeze(1).max(1)[0], x.var(1)


@pytest.mark.usefixtures("without_plugin")
def test_calls_become_versions_of_operations_that_the_importer_takes():
    found = npu_compiler.check(Versions(), (torch.randn(3, 6), torch.randn(3, 2)))
    assert verdicts(found)["operation types"] == "accepted", str(found)


def test_generation_without_rules_is_refused_before_anything_is_done():
    with pytest.raises(npu_compiler.OptionError, match=r"got '5010'.*\[option-value\]"):
        npu_compiler.check(Net(), (torch.randn(2, 8),), generation="5010")


def test_plugin_whose_process_dies_is_a_finding(monkeypatch):
    def died(command, **_):
        return subprocess.CompletedProcess(command, -11, "", "")

    monkeypatch.setattr(module.subprocess, "run", died)
    found = npu_compiler.check(Net().eval(), (torch.randn(2, 8),))
    assert verdicts(found)["the NPU plugin"] == "refused"
    assert "SIGSEGV" in str(found)


def test_results_that_differ_are_refused(monkeypatch):
    def differs(command, **_):
        return subprocess.CompletedProcess(command, 0, '{"step": "done", "error": 0.5}', "")

    monkeypatch.setattr(module.subprocess, "run", differs)
    found = npu_compiler.check(Net().eval(), (torch.randn(2, 8),))
    assert verdicts(found)["equal results"] == "refused"


def test_folder_that_is_none_is_an_error(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "none"):
        assert main(["check", str(path)]) == 2
        error = capsys.readouterr().err
        assert str(path) in error
        assert "[export-absent]" in error


def test_a_saved_program_is_checked_and_its_page_has_rule_call_and_line(tmp_path, capsys):
    file, page = tmp_path / "<b>.pt2", tmp_path / "page.html"
    torch.export.save(torch.export.export(Choice(), (torch.randn(4),)), file)
    refused = main(["check", str(file), "--generation", "3720", "-o", str(page), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], refused) == ("<b>.pt2", 0 if found["is_ready"] else 1)
    text = page.read_text()
    assert "&lt;b&gt;.pt2" in text
    assert "<b>" not in text
    assert all(html.escape(one["detail"], quote=False) in text for one in found["findings"])


@pytest.mark.usefixtures("without_plugin")
def test_a_page_of_a_refusal_leads_to_the_python_line(tmp_path, capsys):
    npu_compiler.export(Choice(), (torch.randn(4),), tmp_path / "m", target="openvino")
    page = tmp_path / "page.html"
    command = ["check", str(tmp_path / "m"), "--generation", "3720"]
    assert main([*command, "-o", str(page)]) == 1
    assert "an NPU would refuse it" in page.read_text()
    assert "test_rules.py:" in page.read_text()
    assert main([*command, "-o", str(tmp_path)]) == 2
    assert "[dump-output]" in capsys.readouterr().err


def test_a_file_that_is_no_saved_program_is_told(tmp_path, capsys):
    (tmp_path / "x.pt2").write_bytes(b"PK")
    assert main(["check", str(tmp_path / "x.pt2")]) == 2
    assert "[saved-program]" in capsys.readouterr().err

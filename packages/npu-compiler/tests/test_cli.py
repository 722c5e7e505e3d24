"""The commands: explain, show, cache."""

from __future__ import annotations

import json

import pytest
import torch

from npu_compiler.cli import main

SCRIPT = """
import subprocess, sys, torch
model = torch.nn.Linear(4, 4).eval()
with torch.no_grad():
    torch.compile(lambda x: model(x).sin().roll(1), backend="npu")(torch.ones(2, 4))
print("argument", sys.argv[1], flush=True)
subprocess.run(["echo", "of a child"])
sys.exit(3)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_explain_says_what_a_script_compiled(script, capsys):
    assert main(["explain", str(script), "here"]) == 3
    out = capsys.readouterr().out
    assert "1 graph, 1 program" in out


def test_explain_keeps_apart_what_the_script_prints(script, capfd):
    main(["explain", "--json", str(script), "here"])
    out, err = capfd.readouterr()
    assert "argument here\nof a child\n" in err
    content = json.loads(out)
    assert content["program_count"] == 1
    assert {one["name"] for one in content["graphs"][0]["passes"]} >= {"fuse_linear"}


def test_explain_of_no_file_is_an_error(capsys):
    assert main(["explain", "nowhere.py"]) == 2
    message = capsys.readouterr().err
    assert "nowhere.py" in message
    assert "[script-absent]" in message


def test_show_renders_what_was_dumped(compiled, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("NPU_COMPILE_DEBUG", str(tmp_path))
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    with torch.no_grad():
        compiled(model)(torch.ones(2, 4))
    (place,) = tmp_path.glob("*-graph_*")
    names = sorted(path.name for path in place.iterdir())
    assert [name for name in names if name.endswith(".txt")] == [
        "0-capture.txt", "1-normalize.txt", "2-fuse.txt", "3-layout.txt", "4-partition.txt",
    ]  # fmt: skip
    assert "program-0.xml" in names
    assert "aten.addmm.default" in (place / "0-capture.txt").read_text()
    assert "npu.linear_relu.default" in (place / "4-partition.txt").read_text()
    monkeypatch.delenv("NPU_COMPILE_DEBUG")
    assert main(["show", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert capsys.readouterr().out.strip() == str(tmp_path / "index.html")
    for expected in (place.name, "fuse_linear_activation", "npu.linear_relu.default", "MatMul"):
        assert expected in page
    assert "<script" not in page
    assert "http" not in page


def test_show_without_dumps_is_an_error(tmp_path, capsys):
    assert main(["show", str(tmp_path)]) == 2
    assert "[dump-absent]" in capsys.readouterr().err


def test_show_of_a_damaged_summary_is_an_error(tmp_path, capsys):
    (tmp_path / "1-graph_0").mkdir()
    (tmp_path / "1-graph_0" / "graph.json").write_text("{}")
    assert main(["show", str(tmp_path)]) == 2
    assert "[dump-damaged]" in capsys.readouterr().err


def test_page_that_cannot_be_written_is_an_error(tmp_path, capsys):
    place = tmp_path / "1-graph_0"
    place.mkdir()
    content = {"name": "graph_0", "kind": "inference", "node_count": 0, "rebuilds": 0}
    content |= {key: [] for key in ("programs", "eager", "passes", "stages")}
    (place / "graph.json").write_text(json.dumps(content))
    assert main(["show", str(tmp_path), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "[dump-output]" in capsys.readouterr().err


def test_directory_that_cannot_be_dumped_to_costs_the_dump_alone(compiled, monkeypatch, caplog):
    monkeypatch.setenv("NPU_COMPILE_DEBUG", "/proc/no-such-place")
    with torch.no_grad():
        assert torch.allclose(compiled(torch.sin)(torch.ones(3)), torch.ones(3).sin())
    assert "NPU_COMPILE_DEBUG" in caplog.text


def test_cache_lists_and_clears(compiled, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    with torch.no_grad():
        compiled(torch.sin)(torch.ones(3))
    assert main(["cache"]) == 0
    assert "1 entry" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 entries")


def test_cache_names_models_and_graphs_and_removes_by_name(compiled, monkeypatch, tmp_path, capsys):
    class Scorer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

        def forward(self, x):
            return self.layers(x)

    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    with torch.no_grad():
        compiled(Scorer().eval())(torch.ones(3, 4))
        compiled(torch.sin)(torch.ones(3))
    assert main(["cache", "--json"]) == 0
    (scorer,) = [
        one
        for one in json.loads(capsys.readouterr().out)
        if one["name"].startswith("Sequential at test_cli.py:")
    ]
    assert main(["cache", "rm", scorer["name"]]) == 0
    assert f"removed {scorer['name']} {scorer['id']}" in capsys.readouterr().out
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("function")
    assert "Sequential" not in said


def test_unknown_command_lists_the_commands(capsys):
    assert main(["display"]) == 2
    assert "show" in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--help"]) == 0

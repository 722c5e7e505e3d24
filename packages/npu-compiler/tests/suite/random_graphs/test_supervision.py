"""Graphs in child processes: a signal, a hang and an exception are findings; the run goes on."""

from __future__ import annotations

import json
import textwrap

import pytest

from npu_compiler.suite.random_graphs import InputSpec, RandomGraph, Ref, Step, supervision
from npu_compiler.suite.random_graphs.__main__ import main

GRAPH = RandomGraph((InputSpec((2, 3)),), (Step("torch.tanh", (Ref(0),)),), (1,)).to_json()


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Puts a script in place of the worker; `number` is the graph's, `say` writes a line."""

    def put(body: str) -> None:
        file = tmp_path / "stand_in_worker.py"
        file.write_text(
            "import json, os, sys, time\n"
            f"graph = {GRAPH!r}\n"
            "def say(**what):\n    print(json.dumps(what), flush=True)\n"
            "count, seed, skip = map(int, sys.argv[1:])\n"
            "for number in range(skip, count):\n"
            "    say(graph=graph, device='npu')\n"
            + textwrap.indent(textwrap.dedent(body), "    ")
            + "say(done=True)\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(supervision, "_CHILD", "stand_in_worker")

    return put


def run(count: int, timeout_s: float = 60) -> supervision.Tally:
    ignore = lambda found: None  # noqa: E731
    return supervision.run(
        count, seed=0, jobs=1, timeout_s=timeout_s, on_finding=ignore, on_batch=ignore
    )


FINE = "say(end=None, programs=1, nodes=2, lowered=2)\n"


def test_graphs_are_counted(child):
    child(FINE)
    tally = run(5)
    assert (tally.graphs, tally.programs, tally.nodes, tally.lowered) == (5, 5, 10, 10)
    assert tally.findings == []


def test_a_signal_is_a_finding_and_the_rest_runs(child):
    child("if number == 1: os.kill(os.getpid(), 11)\n" + FINE)
    tally = run(4)
    assert tally.graphs == 4
    (finding,) = tally.findings
    assert (finding.detail, finding.graph) == ("the process ended with SIGSEGV", GRAPH)


def test_a_hang_is_a_finding(child):
    child("if number == 1: time.sleep(60)\n" + FINE)
    tally = run(3, timeout_s=3)
    assert tally.graphs == 3
    assert [finding.detail for finding in tally.findings] == ["no result in time"]


def test_a_child_that_cannot_start_is_a_finding(monkeypatch):
    monkeypatch.setattr(supervision, "_CHILD", "no_such_worker")
    (finding,) = run(3).findings
    assert finding.detail == "no graph was drawn: the process ended with status 1"


def test_two_real_graphs_run_from_the_command(capsys):
    assert main(["--count", "2", "--seed", "3", "--jobs", "1"]) == 0
    assert "0 to mend" in capsys.readouterr().out


def test_findings_are_written_and_run_again(child, tmp_path, monkeypatch, capsys):
    child("say(end='result 0: differs', programs=1, nodes=1, lowered=1)\n")
    file = tmp_path / "findings.tsv"
    assert main(["--count", "1", "--findings", str(file)]) == 1
    device, graph, detail = file.read_text().strip().split("\t")
    assert (device, json.loads(graph), detail) == ("npu", json.loads(GRAPH), "result 0: differs")
    assert "x1 = torch.tanh(x0)" in capsys.readouterr().out
    monkeypatch.undo()
    assert main(["--replay", str(file)]) == 0
    assert "0 graphs still differ" in capsys.readouterr().out

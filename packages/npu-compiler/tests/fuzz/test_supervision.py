"""The ledger of a run: counts survive on disk, chunks are resumed, findings of one cause meet."""

from __future__ import annotations

import csv
import dataclasses
import json
import textwrap

import pytest

from npu_compiler.fuzz import InputSpec, RandomGraph, Ref, Step, supervision
from npu_compiler.fuzz.__main__ import main
from npu_compiler.fuzz.modes import PLAIN, Mode
from npu_compiler.fuzz.supervision import Finding, Ledger, Limits


def finding(target="torch.tanh", shape=(2, 3), mode=PLAIN, end="differs", detail="by 1"):
    graph = RandomGraph((InputSpec(shape, fill="nan"),), (Step(target, (Ref(0),)),), (1,))
    return Finding(0, "ops", end, detail, graph.to_json(), mode.to_json())


def test_a_ledger_survives_its_directory(tmp_path):
    ledger = Ledger(7, "off")
    ledger.take_chunk(100)
    ledger.advance(ledger.take_chunk(100), 112)
    ledger.add(["kind: ops"], {"calls": 2}, "equal")
    ledger.add_finding(finding())
    ledger.write(tmp_path)
    assert Ledger.read(tmp_path, seed=7, verify="off") == ledger


def test_a_chunk_is_open_until_its_last_number():
    ledger = Ledger(0)
    first = ledger.take_chunk(10)
    ledger.advance(first, 9)
    assert ledger.open_chunks == {0: (9, 10)}
    ledger.advance(first, 10)
    assert ledger.open_chunks == {}
    assert ledger.take_chunk(5) == 10


def test_a_new_directory_starts_a_new_ledger(tmp_path):
    assert Ledger.read(tmp_path, seed=3, verify="") == Ledger(3)


def test_another_seed_is_another_run(tmp_path):
    Ledger(7).write(tmp_path)
    with pytest.raises(ValueError, match=r"got 8, a mixture, a mixture, it has 7, "):
        Ledger.read(tmp_path, seed=8, verify="")


def test_the_summary_lists_counts_and_defects(tmp_path):
    ledger = Ledger(1)
    ledger.add(["way: aot"], {"calls": 3}, "differs")
    ledger.add_finding(finding())
    ledger.write(tmp_path)
    with (tmp_path / "summary.csv").open(encoding="utf-8") as file:
        rows = {row["what"]: row["count"] for row in csv.DictReader(file)}
    assert rows["graphs"] == rows["way: aot"] == rows["end: differs"] == "1"
    assert rows["total: calls"] == "3"
    assert rows["defect: differs | tanh | nan"] == "1"


def test_findings_of_one_cause_have_one_name():
    assert finding(shape=(4, 5)).defect == finding().defect
    assert finding("torch.sin").defect != finding().defect
    assert finding(mode=Mode(precision="float16")).defect != finding().defect
    raised = [finding(end="raises", detail=f"KeyError: node {n}").defect for n in (1, 2)]
    assert raised[0] == raised[1] == "raises | KeyError: node | tanh | nan"


GRAPH = RandomGraph((InputSpec((2, 3)),), (Step("torch.tanh", (Ref(0),)),), (1,)).to_json()
FINE = "say(result={'kind': 'equal', 'detail': '', 'programs': 1, 'nodes': 2, 'lowered': 2})\n"
WRONG = "say(result={'kind': 'differs', 'detail': 'by 1'})\n"


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Puts a script in place of the worker; `number` is the graph's, `say` writes a line."""

    def put(body: str) -> None:
        file = tmp_path / "stand_in_worker.py"
        file.write_text(
            "import json, os, sys, time\n"
            f"graph, mode = {GRAPH!r}, {PLAIN.to_json()!r}\n"
            "def say(**what):\n    print(json.dumps(what), flush=True)\n"
            "task = json.loads(sys.stdin.readline())\n"
            "for number in range(task['first'], task['end']):\n"
            "    say(number=number, kind='ops', graph=graph, mode=mode)\n"
            + textwrap.indent(textwrap.dedent(body), "    ")
            + "say(done=True)\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(supervision, "_CHILD", "stand_in_worker")

    return put


def run(count, directory=None, ledger=None, **limits):
    ledger = ledger or Ledger(0)
    findings = []
    supervision.run(
        ledger,
        directory,
        Limits(count=count, **limits),
        on_finding=findings.append,
        on_save=lambda current: None,
    )
    return ledger, findings


def test_graphs_are_counted(child):
    child(FINE)
    ledger, findings = run(5)
    assert (ledger.graphs, findings) == (5, [])
    assert ledger.counts["total: lowered"] == 10
    assert ledger.counts["kind: ops"] == ledger.counts["end: equal"] == 5


def test_a_graph_that_eager_refuses_is_counted_and_no_finding(child):
    child("say(result={'kind': 'invalid', 'detail': ''})\n")
    ledger, findings = run(2, shrink_s=0)
    assert (ledger.counts["end: invalid"], findings) == (2, [])


def test_a_signal_is_a_finding_and_the_rest_runs(child):
    child("if number == 1: os.kill(os.getpid(), 11)\n" + FINE)
    ledger, (finding,) = run(4)
    assert ledger.graphs == 4
    assert (finding.end, finding.detail) == ("killed", "the process ended with SIGSEGV")
    assert (finding.number, finding.graph) == (1, GRAPH)


def test_a_hang_is_a_finding(child):
    child("if number == 1: time.sleep(60)\n" + FINE)
    ledger, (finding,) = run(3, timeout_s=1)
    assert (ledger.graphs, finding.end) == (3, "hangs")


def test_a_child_that_cannot_start_ends_the_run(monkeypatch):
    monkeypatch.setattr(supervision, "_CHILD", "no_such_worker")
    with pytest.raises(
        RuntimeError, match="graph 0 was not drawn: the process ended with status 1"
    ):
        run(3)


def test_a_finding_is_kept_with_what_it_was_shrunk_to(child, tmp_path):
    child(WRONG + "say(smaller=graph, simpler=mode)\n")
    _, findings = run(2, tmp_path)
    assert [finding.smaller for finding in findings] == [GRAPH, GRAPH]
    lines = (tmp_path / "findings.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1]


def test_a_process_that_ends_while_it_shrinks_leaves_the_finding(child):
    child(WRONG + "if number == 0: os.kill(os.getpid(), 6)\nsay(smaller=graph, simpler=mode)\n")
    ledger, findings = run(2)
    assert ledger.graphs == 2
    assert [(f.number, f.end, bool(f.smaller)) for f in findings] == [
        (0, "differs", False),
        (1, "differs", True),
    ]


def test_a_run_goes_on_where_it_was_stopped(child, tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "_CHUNK", 4)
    child(FINE)
    ledger, _ = run(6, tmp_path)
    ledger.open_chunks = {4: (5, 6)}  # as if number 5 had not been reached
    ledger.graphs = 5
    again, _ = run(9, tmp_path, ledger)
    assert (again.graphs, again.open_chunks, again.next_first) == (9, {}, 9)


def test_a_run_ends_in_time(child):
    child("time.sleep(0.2)\n" + FINE)
    ledger, _ = run(1000, seconds=1)
    assert 0 < ledger.graphs < 50


def test_two_real_graphs_run_from_the_command(capsys, tmp_path):
    arguments = ["--count", "2", "--seed", "3", "--jobs", "1", "--verify", "first"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert "2 graphs, seed 3" in capsys.readouterr().out
    assert (tmp_path / "summary.csv").is_file()


def test_a_run_of_another_seed_is_not_mixed_in(tmp_path, capsys):
    Ledger(3).write(tmp_path)
    with pytest.raises(SystemExit):
        main(["--count", "1", "--out", str(tmp_path)])
    assert "Name another directory" in capsys.readouterr().err


def test_findings_are_shown_and_run_again(child, tmp_path, monkeypatch, capsys):
    child(WRONG)
    assert main(["--count", "1", "--jobs", "1", "--out", str(tmp_path), "--shrink", "0"]) == 1
    assert "x1 = torch.tanh(x0)" in capsys.readouterr().out
    monkeypatch.undo()
    assert main(["--replay", str(tmp_path / "findings.jsonl")]) == 0
    assert "0 graphs still differ" in capsys.readouterr().out


def test_a_graph_that_is_invalid_by_now_is_shown_and_differs_no_more(tmp_path, capsys):
    product = RandomGraph((InputSpec((2, 3)),), (Step("torch.mm", (Ref(0), Ref(0))),), (1,))
    finding = Finding(7, "ops", "raises", "by then", product.to_json(), PLAIN.to_json())
    file = tmp_path / "findings.jsonl"
    file.write_text(json.dumps(dataclasses.asdict(finding)) + "\n")
    assert main(["--replay", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "# graph 7 (ops) invalid" in shown
    assert "0 graphs still differ" in shown

"""The ledger of a run: counts survive on disk, chunks are resumed, findings of one cause meet."""

from __future__ import annotations

import csv

import pytest

from npu_compiler.suite.random_graphs import InputSpec, RandomGraph, Ref, Step
from npu_compiler.suite.random_graphs.ledger import Finding, Ledger
from npu_compiler.suite.random_graphs.modes import PLAIN, Mode


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

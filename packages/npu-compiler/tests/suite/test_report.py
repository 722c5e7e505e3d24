"""Measurements as lines, as CSV and as a page."""

from __future__ import annotations

import dataclasses

from npu_compiler.suite.measurement import Measurement
from npu_compiler.suite.report import (
    Facts,
    cells,
    draws_section,
    model_coverage_page,
    read_csv,
    row_line,
    summary,
    verdict,
    write_csv,
)
from npu_compiler.suite.table import LEFT_OUT

WHOLE = Measurement(
    "bert", "encoder", "npu", graphs=1, programs=1, nodes=9, lowered=9, error=2e-7,
    compile_time_s=1.5, finished=True,
)  # fmt: skip
CUT = Measurement(
    "fnet", "encoder", "npu", graphs=1, programs=3, nodes=9, lowered=7, error=2e-7,
    compile_time_s=1.5, detail="aten.fft: no converter, so `eager`", finished=True,
)  # fmt: skip
WRONG = Measurement("vit", "vision", "npu", graphs=1, programs=1, nodes=4, lowered=4, error=0.5,
                    finished=True)  # fmt: skip
LOST = Measurement("swin", "vision", "npu", detail="ended by SIGSEGV")
ROWS = [WHOLE, CUT, WRONG, LOST]
FACTS = Facts("2026-11-20", "python -m npu_compiler.suite", "torch 2.13.0", "openvino, CPU")


def test_verdicts_tell_whole_right_wrong_and_failed():
    assert [verdict(row) for row in ROWS] == [
        "whole",
        "right; aten.fft: no converter, so `eager`",
        "WRONG",
        "FAILED: ended by SIGSEGV",
    ]


def test_a_line_has_the_figures():
    assert row_line(cells(WHOLE)).split() == [
        "bert", "encoder", "0", "1", "1", "9", "of", "9", "2.0e-07", "1.5", "whole",
    ]  # fmt: skip


def test_summary_counts_right_and_whole():
    assert summary(ROWS).startswith("4 architectures: 2 right (error at most 1e-04), 1 whole")


def test_csv_gives_the_measurements_back(tmp_path):
    file = tmp_path / "rows.csv"
    write_csv(ROWS, file)
    assert read_csv(file) == ROWS


def test_page_shows_every_family_and_what_is_not_whole():
    page = model_coverage_page(ROWS, FACTS)
    assert "- 4 architectures: 2 right, 1 of them whole" in page
    assert "## Encoder" in page
    assert "| bert | 0 | 1 | 1 | 9 of 9 (100%) | 2.0e-07 | 1.5 s |" in page
    assert "- fnet, right: `aten.fft: no converter, so 'eager'`" in page
    assert "- vit, wrong: `1 graphs, 1 programs`" in page
    assert "- swin, did not finish: `ended by SIGSEGV`" in page


def test_page_names_what_was_left_out_and_the_runs_note():
    page = model_coverage_page(ROWS, dataclasses.replace(FACTS, note="Compiled on a busy machine."))
    assert "- Compiled on a busy machine." in page
    assert all(f"- {name}: {reason}." in page for name, reason in LEFT_OUT.items())


def test_page_is_the_same_for_the_same_rows():
    assert model_coverage_page(ROWS, FACTS) == model_coverage_page(ROWS, FACTS)


def test_draws_are_counted_by_family_and_those_not_right_are_named():
    kept = {"family": "encoder", "finished": True, "programs": 1, "graphs": 1}
    rows = [
        Measurement("bert", error=1e-7, draw=0, **kept),
        Measurement("bert", error=2e-6, draw=1, **kept),
        Measurement("bert", error=1e-3, rounding=8e-4, draw=2, **kept),
        Measurement("fnet", error=0.5, draw=0, detail="`a`", **kept),
        Measurement("fnet", error=1e-7, draw=1, false_alarm="differed", **kept),
        Measurement("fnet", "encoder", draw=2, detail="too small [suite-sizes]"),
        Measurement("vit", "vision", draw=0, detail="ended by SIGSEGV"),
    ]
    section = draws_section(rows, FACTS)
    assert "| encoder | 2 | 6 | 3 | 3 | 1 | 2 | 5.0e-01 |" in section
    assert "| vision | 1 | 1 | 0 | 0 | 0 | 1 | 0.0e+00 |" in section
    assert "| all | 3 | 7 | 3 | 3 | 1 | 3 | 5.0e-01 |" in section
    assert "Encoder: bert, fnet." in section
    assert "- fnet, draw 0, not right: `'a'`" in section
    assert "- fnet, draw 1, not right: `differed`" in section
    assert "- fnet, draw 2, refused by torch: `too small [suite-sizes]`" in section
    assert "- vit, draw 0, not right: `ended by SIGSEGV`" in section
    assert "- bert, draw 2, right: off by 1.0e-03, where eager float32 is off by 8.0e-04" in section
    assert "bert, draw 0" not in section

"""The survey of what an NPU's compiler takes: its page, and rows that a run leaves alone."""

import sys

import npu_survey
from npu_compiler.suite.table import select

WHOLE = "| qwen3 | text decoder | 1 | whole | whole |  |  |"
PARTS = "| longformer | encoder | 6 | partitioned | partitioned |  | on the host: aten.roll |"
FOLDED = "| mobilevitv2 | vision | 1 | refused | refused | whole, rewritten | Col2Im (opset15) |"


def test_the_page_counts_verdicts_before_and_after():
    text = npu_survey.page([WHOLE, PARTS, FOLDED])
    assert "small models of 3 architectures" in text
    assert "- NPU 4000: 1 whole, 1 partitioned, 1 refused\n" in text
    assert 'with `target="NPU"`: 1 whole, 1 partitioned, 1 whole, rewritten\n' in text
    assert text.endswith(f"{WHOLE}\n{PARTS}\n{FOLDED}\n")


def test_a_run_replaces_its_own_rows_and_keeps_the_others(tmp_path, monkeypatch):
    (found,) = select(["mobilevitv2"])
    page = tmp_path / "page.md"
    page.write_text(npu_survey.page([WHOLE, FOLDED.replace("whole, rewritten", "refused")]))
    row = npu_survey.Row(
        found, 1, ("refused", "refused"), "whole, rewritten", ("Col2Im (opset15)",)
    )
    monkeypatch.setattr(npu_survey, "PAGE", page)
    monkeypatch.setattr(npu_survey, "survey", lambda architecture: row)
    monkeypatch.setattr(sys, "argv", ["npu_survey.py", "mobilevitv2"])
    npu_survey.main()
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")][1:]
    assert rows == [WHOLE, FOLDED]


def test_the_committed_page_is_what_its_rows_make():
    rows = list(npu_survey._kept().values())
    assert npu_survey.PAGE.read_text() == npu_survey.page(rows)

"""The guide lists the known defects."""

from __future__ import annotations

from pathlib import Path

from npu_compiler.known_defects.table import KNOWN_DEFECTS

GUIDE = Path(__file__).parents[4] / "docs/concepts/verification.md"


def test_the_guide_has_a_row_for_each_known_defect_and_no_other() -> None:
    section = GUIDE.read_text().partition("## Known defects of the plugins")[2]
    named = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(named) == sorted(defect.name for defect in KNOWN_DEFECTS)

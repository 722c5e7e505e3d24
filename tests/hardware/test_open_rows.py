"""Each open row of docs/verification/index.md names an existing test, and each test has its row."""

import re


def test_open_rows_and_hardware_tests_are_the_same(root):
    page = (root / "docs/verification/index.md").read_text()
    rows = page.partition("## Open, until it runs on an NPU")[2].partition("Also open")[0]
    named = re.findall(r"\| `(test_\w+)` \|$", rows, re.M)
    source = (root / "tests/hardware/test_npu.py").read_text()
    assert named == re.findall(r"^def (test_\w+)\(", source, re.M)
    told = re.findall(
        r"^\| `(test_\w+)` \|", (root / "docs/guides/first-hour.md").read_text(), re.M
    )
    assert told == named

"""Runs a library's tests on the CPU and on npu, and reports differences.

    python tools/library_tests.py CHECKOUT tests/models/bert/test_modeling_bert.py
    python tools/library_tests.py CHECKOUT tests/test_hooks.py --devices npu -k multi

CHECKOUT is a folder with the tests of the installed release. Each file runs in a separate process
for each device, without the hub. A test that passes on the first device and fails on another is
repeated there; the exit code is 1 if it fails again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from junit_report import read_cases

__all__ = ["differences", "run_file", "table"]

Results = dict[str, str]


def run_file(checkout: Path, file: str, device: str, arguments: tuple[str, ...] = ()) -> Results:
    """Runs one test file on a device, in a separate process.

    Raises:
        RuntimeError: if pytest ends without a report.
    """
    chosen = {
        "TRANSFORMERS_TEST_DEVICE": device,
        "NPU_AUTO": "0" if device == "cpu" else "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", file, *words],
            cwd=checkout, env=os.environ | chosen, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not report.is_file():
            said = f"{done.stdout[-800:]}{done.stderr[-800:]}"
            raise RuntimeError(f"{file} on {device}: pytest made no report (exit code "
                               f"{done.returncode}):\n{said}")  # fmt: skip
        return {f"{case.owner}::{case.name}": case.result for case in read_cases(report)}


def differences(first: Results, other: Results) -> dict[str, list[str]]:
    """Compares the results of two devices.

    Returns:
        Tests by outcome: "worse" (passed on the first, and failed or missing on the
        other), "more" (skipped on the first, passed on the other) and "only failed" (skipped on
        the first or missing there, failed on the other), each sorted.
    """
    found: dict[str, list[str]] = {"worse": [], "more": [], "only failed": []}
    for name in sorted(first.keys() | other.keys()):
        pair = first.get(name, "missing"), other.get(name, "missing")
        if pair in (("passed", "failed"), ("passed", "missing")):
            found["worse"].append(name)
        elif pair in (("skipped", "passed"), ("missing", "passed")):
            found["more"].append(name)
        elif pair in (("skipped", "failed"), ("missing", "failed")):
            found["only failed"].append(name)
    return found


def table(rows: dict[tuple[str, str], Results]) -> str:
    """The counts of each file and device as a table in Markdown."""
    lines = ["| File | Device | Passed | Failed | Skipped |", "|---|---|---|---|---|"]
    for (file, device), results in rows.items():
        counts = Counter(results.values())
        numbers = " | ".join(f"{counts[name]:,}" for name in ("passed", "failed", "skipped"))
        lines.append(f"| `{Path(file).name}` | {device} | {numbers} |")
    return "\n".join(lines)


def main() -> int:
    """Runs the given tests; returns 1 if a device fails one that passes on the first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="+", help="of tests, from the checkout")
    parser.add_argument("--devices", nargs="+", default=["cpu", "npu"], help="cpu npu by default")
    parser.add_argument("-k", dest="select", help="of the tests, as for pytest")
    options = parser.parse_args()
    selected = () if options.select is None else ("-k", options.select)
    rows: dict[tuple[str, str], Results] = {}
    notes: list[str] = []
    is_good = True
    for file in options.files:
        for device in options.devices:
            results = rows[file, device] = run_file(options.checkout, file, device, selected)
            first = rows[file, options.devices[0]]
            found = differences(first, results)
            if found["worse"]:
                again = run_file(options.checkout, file, device, selected)
                results.update({name: again.get(name, "missing") for name in found["worse"]})
                fickle = [name for name in found["worse"] if results[name] == "passed"]
                notes += [f"{device}: {name}: passed when run again" for name in fickle]
                found = differences(first, results)
            is_good = is_good and not found["worse"]
            for what in ("worse", "only failed", "more"):
                notes += [f"{device}: {name}: {what}" for name in found[what]]
            print(table({(file, device): results}).splitlines()[2], flush=True)
    print("", datetime.date.today(), table(rows), "\n".join(notes), sep="\n\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

"""`npu-compiler check FOLDER`: says whether an exported model suits an NPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints the findings; returns 1 when one is a refusal."""
    parser = argparse.ArgumentParser(
        prog="npu-compiler check",
        description="Say whether an exported model is what an NPU accepts; no NPU is needed.",
    )
    parser.add_argument("folder", type=Path, help="that npu_compiler.export made")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    from npu_compiler.readiness import check_folder  # OpenVINO: help needs none

    readiness = check_folder(given.folder)
    print(readiness.to_json() if given.json else readiness)
    return 0 if readiness.is_ready else 1

"""The NPU compiler of the suite `npu-compiler-wine`: installs it, or skips the suite."""

from __future__ import annotations

import os
from pathlib import Path

import nox

from sessions.environments import record_duration, run_in

__all__ = ["prepare_compiler"]


def prepare_compiler(session: nox.Session, python: Path, report: Path) -> None:
    """Makes the compiler ready, or skips the session.

    Args:
        session: the running session.
        python: the interpreter of the platform.
        report: JUnit file of the suite; if the suite is left out, the reason replaces it, as text.
    """
    reason = report.with_suffix(".txt")
    flags = ["--install"] if os.environ.get("NPU_TESTS_COMPILER") == "1" else []
    with record_duration(python.parents[1].name, "target compiler"):
        run_in(session, python, "tools/target_compiler.py", reason, *flags)
    if reason.exists():
        report.unlink(missing_ok=True)
        session.skip(f"left out: {reason.read_text().strip()}")

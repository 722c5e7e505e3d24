"""Runs a command of another package as a process, and reads its JSON."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_profiler.errors import TraceError

__all__ = ["run_command"]


def run_command(name: str, words: Sequence[str], *, caller: str) -> Any:
    """Runs a command with `--json FILE` added and returns its answer; stderr is this process's.

    Raises [command-missing] if it is not installed, [command-failed] if it exits with an error,
    which standard error reports.
    """
    command = _find(name, caller)
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "answer.json"
        ended = subprocess.run(
            [command, *words, "--json", str(target)], stdout=subprocess.PIPE, text=True, check=False
        )
        if ended.returncode != 0 or not target.is_file():
            sys.stderr.write(ended.stdout)
            raise TraceError(
                f"{caller}: {name} {' '.join(words)} must succeed, got exit code "
                f"{ended.returncode}. See its message above.",
                code="command-failed",
            )
        return json.loads(target.read_text("utf-8"))


def _find(name: str, caller: str) -> str:
    """Returns the command's path: next to this Python, else on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise TraceError(
            f"{caller}: the command {name} must be next to this Python or on PATH, got neither. "
            f"Install its wheel: pip install dist/{name.replace('-', '_')}-*.whl.",
            code="command-missing",
        )
    return found

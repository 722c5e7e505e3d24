"""Language models over prompt lengths and dtypes, measured by npu-llm's own benchmark in a child.

npu-profiler does not import npu-llm: it runs the command that comes with it, if it is installed.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_command.charts import Chart, Panel, draw_bars
from npu_profiler.errors import TraceError
from npu_profiler.reports.tables.model import Column, Table

__all__ = ["draw", "find_command", "run_bench", "to_table"]

_COMMAND = "npu-llm"
_PANELS = {
    "first_token_s": "Time to first token (ms)",
    "prefill_tokens_per_s": "Prefill (tokens/s)",
    "decode_tokens_per_s": "Decode (tokens/s)",
}


def find_command() -> str:
    """Where npu-llm is installed: beside this Python, else on PATH.

    Raises:
        TraceError: [llm-missing] It is not.
    """
    beside = Path(sys.executable).parent / _COMMAND
    found = str(beside) if beside.is_file() else shutil.which(_COMMAND)
    if found is None:
        raise TraceError(
            "llm: needs the command npu-llm; it is neither beside this Python nor on PATH. "
            "Install it: pip install npu-llm.",
            code="llm-missing",
        )
    return found


def run_bench(command: str, words: Sequence[str]) -> dict[str, Any]:
    """Runs `npu-llm bench` with arguments; what it tells meanwhile goes to stderr.

    Returns:
        What it wrote as JSON: facts, and `records`.

    Raises:
        TraceError: [llm-failed] It ended with an error, which it has explained on stderr.
    """
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "bench.json"
        ended = subprocess.run(
            [command, "bench", *words, "--json", str(target)],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if ended.returncode != 0 or not target.is_file():
            raise TraceError(
                f"llm: npu-llm bench {' '.join(words)} must end well; got exit code "
                f"{ended.returncode}. See its message above.",
                code="llm-failed",
            )
        found: dict[str, Any] = json.loads(target.read_text("utf-8"))
    return found


def to_table(benches: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each size and dtype."""
    columns = [
        Column("precision", "dtype"),
        Column("prompt_tokens", "prompt", "count"),
        Column("new_tokens", "answer", "count"),
        Column("batch_size", "batch", "count"),
        Column("first_token_ns", "TTFT ms", "ns"),
        Column("prefill_tokens_per_s", "prefill tokens/s", "number"),
        Column("decode_tokens_per_s", "decode tokens/s", "number"),
        Column("peak_memory_bytes", "peak memory", "bytes"),
    ]
    rows = [
        [
            bench["precision"],
            record["prompt_tokens"],
            record["new_tokens"],
            record["batch_size"],
            record["first_token_s"] * 1e9,
            record["prefill_tokens_per_s"],
            record["decode_tokens_per_s"],
            record["peak_memory_bytes"],
        ]
        for bench in benches
        for record in bench["records"]
    ]
    names = ", ".join(dict.fromkeys(f"{one['model']} on {one['device']}" for one in benches))
    return Table(names, columns, rows)


def draw(benches: Sequence[Mapping[str, Any]], *, title: str) -> Chart:
    """Bars: a panel for each figure, a group for each size, a bar for each dtype."""
    panels = []
    for key, name in _PANELS.items():
        groups: dict[str, dict[str, float]] = {}
        for bench in benches:
            for record in bench["records"]:
                if record[key] is not None:
                    size = f"{record['prompt_tokens']} + {record['new_tokens']} tokens"
                    scale = 1e3 if key.endswith("_s") and "per" not in key else 1
                    groups.setdefault(size, {})[bench["precision"]] = record[key] * scale
        panels.append(Panel(name, groups))
    return draw_bars(panels, title=title)

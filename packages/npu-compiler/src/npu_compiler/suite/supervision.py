"""Runs architectures in child processes, so that a signal or a hang is a row and not the end.

A child measures one architecture after the other, since its imports take longer than a small model;
one that ends or hangs is replaced. ``python -m npu_compiler.suite.supervision DEVICE SEED`` is the
child: it reads names and draws, and answers each with a row. What a row says is in measurement.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence

import torch

from npu_compiler.suite.families.architecture import Architecture
from npu_compiler.suite.measurement import Measurement, measure
from npu_compiler.suite.table import find

__all__ = ["Child", "run_all"]

_SHOWN = 600


def run_all(
    architectures: Sequence[Architecture],
    *,
    device: str,
    seed: int,
    timeout_s: float,
    jobs: int,
    on_row: Callable[[Measurement], object],
    draws: Sequence[int | None] = (None,),
) -> list[Measurement]:
    """Measures architectures in children; returns the rows in the order given.

    Args:
        architectures: what to measure.
        device: "npu" or "cpu".
        seed: of the weights and the inputs.
        timeout_s: of each architecture.
        jobs: children at a time.
        on_row: called with each row when it is there, by one thread at a time.
        draws: of sizes, each of which every architecture is measured with; see measurement.
    """
    waiting: queue.SimpleQueue[tuple[Architecture, int | None]] = queue.SimpleQueue()
    every = [(architecture, draw) for architecture in architectures for draw in draws]
    for case in every:
        waiting.put(case)
    rows: dict[tuple[str, int | None], Measurement] = {}
    lock = threading.Lock()

    def work() -> None:
        child = Child(device=device, seed=seed, timeout_s=timeout_s)
        with contextlib.closing(child), contextlib.suppress(queue.Empty):
            while True:
                architecture, draw = waiting.get_nowait()
                row = child.measure(architecture, draw)
                with lock:
                    rows[architecture.name, draw] = row
                    on_row(row)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [rows[architecture.name, draw] for architecture, draw in every]


class Child:
    """A process that measures, started when first asked and again after it ended."""

    def __init__(self, *, device: str, seed: int, timeout_s: float) -> None:
        self._device = device
        self._command = [sys.executable, "-m", __spec__.name, device, str(seed)]
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        # What a library prints, so that an end can be told with its reason.
        self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115  # close()

    def measure(self, architecture: Architecture, draw: int | None = None) -> Measurement:
        """Measures one architecture; however the process ends, there is a row."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([architecture.name, draw]) + "\n")
            process.stdin.flush()
        timer = threading.Timer(self._timeout_s, process.kill)
        timer.start()
        line = process.stdout.readline()
        is_late = not timer.is_alive()
        timer.cancel()
        answer = json.loads(line) if line else self._end(is_late)
        if "row" in answer:
            return Measurement.from_json(answer["row"])
        return Measurement(
            architecture.name,
            architecture.family,
            device=self._device,
            detail=answer["error"][:_SHOWN],
            draw=draw,
        )

    def close(self) -> None:
        """Lets the process end, if there is one."""
        self._stop()
        self._errors.close()

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # A program from a former run would hide what compiling takes.
            env=os.environ | {"NPU_COMPILE_CACHE_SIZE_MB": "0"},
        )
        return self._process

    def _end(self, is_late: bool) -> dict[str, str]:
        status = self._stop()
        self._errors.seek(0)
        said = [line for line in self._errors.read().splitlines() if line.strip()]
        if is_late:
            return {"error": f"no result after {self._timeout_s:g} s"}
        if status < 0:
            return {"error": f"ended by {signal.Signals(-status).name}"}
        return {"error": said[-1] if said and status else f"exit code {status}"}

    def _stop(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()


def main(arguments: list[str]) -> None:
    """The child: reads names and draws as JSON, writes rows as lines of JSON."""
    device, seed = arguments
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        name, draw = json.loads(line)
        try:
            row = measure(find(name), device=device, seed=int(seed), draw=draw)
            answer = {"row": row.to_json()}
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a row
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

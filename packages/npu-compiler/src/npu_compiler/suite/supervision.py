"""Runs architectures in child processes, so that a signal or a hang is a row and not the end.

``python -m npu_compiler.suite.supervision DEVICE SEED`` is the child: it takes names and draws, and
answers each with a row.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from npu_command.children import Child, Say, run_each, serve
from npu_compiler.suite.families.architecture import Architecture
from npu_compiler.suite.measurement import Measurement, measure
from npu_compiler.suite.table import find

__all__ = ["make_child", "measure_in", "run_all"]

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
    every = [(architecture, draw) for architecture in architectures for draw in draws]
    rows: dict[tuple[str, int | None], Measurement] = {}
    lock = threading.Lock()

    def work(child: Child, case: tuple[Architecture, int | None]) -> None:
        architecture, draw = case
        row = measure_in(child, architecture, draw, device=device, timeout_s=timeout_s)
        with lock:
            rows[architecture.name, draw] = row
            on_row(row)

    def make() -> Child:
        return make_child(device=device, seed=seed, timeout_s=timeout_s)

    run_each(every, work, jobs=jobs, make_child=make)
    return [rows[architecture.name, draw] for architecture, draw in every]


def make_child(*, device: str, seed: int, timeout_s: float) -> Child:
    """Returns a child that measures architectures; see run_all."""
    # A program from a former run would hide what compiling takes.
    environment = {"NPU_COMPILE_CACHE_SIZE_MB": "0"}
    name = __spec__.name
    return Child(name, device, str(seed), timeout_s=timeout_s, environment=environment)


def measure_in(
    child: Child,
    architecture: Architecture,
    draw: int | None = None,
    *,
    device: str,
    timeout_s: float,
) -> Measurement:
    """Measures one architecture in a child; however that ends, there is a row."""
    child.give([architecture.name, draw])
    answer = child.answer()
    if answer is not None and "row" in answer:
        return Measurement.from_json(answer["row"])
    detail = answer["error"] if answer is not None else _end_of(child, timeout_s)
    return Measurement(
        architecture.name, architecture.family, device=device, detail=detail[:_SHOWN], draw=draw
    )


def _end_of(child: Child, timeout_s: float) -> str:
    if child.is_late:
        return f"no result after {timeout_s:g} s"
    if child.signal_name:
        return f"ended by {child.signal_name}"
    return child.said if child.said and child.status else f"exit code {child.status}"


def main(arguments: list[str]) -> None:
    """The child: takes names and draws, answers with rows."""
    device, seed = arguments

    def reply(case: tuple[str, int | None], say: Say) -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        name, draw = case
        answer: dict[str, Any]
        try:
            row = measure(find(name), device=device, seed=int(seed), draw=draw)
            answer = {"row": row.to_json()}
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a row
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        say(answer)

    serve(reply)


if __name__ == "__main__":
    main(sys.argv[1:])

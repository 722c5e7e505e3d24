"""Runs the fuzzer's tasks in child processes, and reports a crash as a finding.

A call that crashed its child runs once more, alone, on each device: npu must return or raise even
if torch's CPU kernel crashes.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from npu_command.children import Child, run_each
from npu_ops.op_conformance.fuzz.call import Call

__all__ = ["Finding", "Kind", "Tally", "make_alone", "make_child", "run_tasks"]

_CHILD = "npu_ops.op_conformance.fuzz.worker"
_START_S = 600  # for a child's imports on a busy machine


class Kind(enum.StrEnum):
    """Kinds of findings."""

    SIGNAL = "signal"  # npu crashes, whatever the CPU does
    SIGNAL_ON_CPU = "signal-on-cpu"  # npu raises or returns, or the call does not use it
    REFUSED = "refused"  # npu raises where torch's kernel does not validate arguments
    DIFFERENCE = "difference"
    TIMEOUT = "timeout"  # npu exceeds the time limit, the CPU does not
    UNREPEATED = "unrepeated"  # a crash that neither the call nor its op's calls reproduce


@dataclass(frozen=True)
class Finding:
    """A finding, with its call; pass `call` to ``--replay``."""

    kind: Kind
    op: str
    detail: str
    call: str

    @property
    def is_ours(self) -> bool:
        """Whether npu crashes, or its outcome differs from the CPU's."""
        return self.kind in (Kind.SIGNAL, Kind.DIFFERENCE, Kind.TIMEOUT)


@dataclass
class Tally:
    """Counts of calls by their outcome on the CPU."""

    calls: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def run_tasks(
    tasks: Iterable[dict[str, Any]],
    *,
    jobs: int,
    timeout_s: float,
    on_finding: Callable[[Finding], object],
) -> Tally:
    """Runs tasks, each the calls of one op, on ``jobs`` children.

    Args:
        tasks: tasks of `worker`: ``op``, ``calls``, ``seed`` and ``skip``.
        jobs: number of concurrent children.
        timeout_s: time limit of a step of a call, in seconds.
        on_finding: callback, called by one thread at a time.
    """
    tally = Tally()
    lock = threading.Lock()

    def found(finding: Finding) -> None:
        with lock:
            tally.findings.append(finding)
            on_finding(finding)

    def work(child: Child, task: dict[str, Any]) -> None:
        _run_task(child, task, tally, lock, found)

    run_each(tasks, work, jobs=jobs, make_child=lambda: make_child(timeout_s))
    return tally


def _run_task(
    child: Child,
    task: dict[str, Any],
    tally: Tally,
    lock: threading.Lock,
    found: Callable[[Finding], None],
) -> None:
    """Runs the calls of an op; after a crash, the remaining ones in a new child."""
    skip, call = 0, ""
    while True:
        last: dict[str, Any] = {}
        for step in _steps(child, task | {"skip": skip}):
            last = step
            call = step.get("call", call)
            if step["at"] not in ("end", "drawn"):
                continue
            skip += 1
            with lock:
                tally.calls += 1
                tally.ends[step.get("ends", {}).get("cpu", "not built")] += 1
            if step.get("difference"):
                found(Finding(Kind.DIFFERENCE, task["op"], step["difference"], call))
            if step.get("refusal"):
                found(Finding(Kind.REFUSED, task["op"], step["refusal"], call))
        if last.get("at") == "done":
            return
        end = _end_of(child)
        if not last:
            found(Finding(Kind.TIMEOUT, task["op"], f"no call was drawn: {end}", ""))
            return
        skip += 1
        with lock:
            tally.calls += 1
            tally.ends[end] += 1
        finding = _judged(child, call, end)
        if finding is not None and finding.kind is Kind.UNREPEATED:
            finding = _repeated(child, task, finding)
        if finding is not None:
            found(finding)


def _judged(child: Child, call: str, end: str) -> Finding | None:
    """Returns the finding of a call that crashed its child; None if it is only slow on both."""
    made = Call.from_json(call)
    op = made.op
    cpu = make_alone(child, call, "cpu")
    if not made.names_device:
        return Finding(Kind.SIGNAL_ON_CPU, op, f"cpu: {cpu}; the call names no device", call)
    npu = make_alone(child, call, "npu")
    detail = f"cpu: {cpu}; npu: {npu}"
    is_ended = {where: _is_end(said) for where, said in (("cpu", cpu), ("npu", npu))}
    if not any(is_ended.values()):
        return Finding(Kind.UNREPEATED, op, f"{end}; alone, {detail}", call)
    if npu == _LATE:
        return None if cpu == _LATE else Finding(Kind.TIMEOUT, op, detail, call)
    if cpu == _LATE and not is_ended["npu"]:
        return None
    if is_ended["npu"]:
        return Finding(Kind.SIGNAL, op, detail, call)
    return Finding(Kind.SIGNAL_ON_CPU, op, detail, call)


def _repeated(child: Child, task: dict[str, Any], finding: Finding) -> Finding:
    """Repeats all calls of the op on npu in a new process: a crash there is the op's.

    Otherwise an earlier op caused it, or the CPU's kernel wrote out of bounds.
    """
    child.stop()
    call = ""
    for step in _steps(child, task | {"places": ["npu"]}):
        call = step.get("call", call)
        if step["at"] == "done":
            return finding
    return Finding(Kind.SIGNAL, finding.op, f"{_end_of(child)} after calls of the same op", call)


def make_alone(child: Child, call: str, *places: str) -> str:
    """Runs one call in a new process; returns the outcome as text."""
    child.stop()
    said = ""
    for step in _steps(child, {"call": call, "places": places}):
        if step["at"] == "end":
            said = step.get("difference") or "; ".join(step["ends"].values())
        if step["at"] == "drawn":
            said = step["note"]
        if step["at"] == "done":
            child.stop()
            return said
    return _end_of(child)


_LATE = "it took too long"


def _is_end(said: str) -> bool:
    return said == _LATE or said.startswith("the process ended")


def make_child(timeout_s: float) -> Child:
    """Returns a child that draws and runs calls.

    Args:
        timeout_s: time limit of a step of a call, in seconds.
    """
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    return Child(_CHILD, timeout_s=timeout_s, start_s=_START_S, environment=environment)


def _steps(child: Child, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the reported steps of a task; ends without "done" if the process ended."""
    child.give(task)
    for step in child.answers():
        yield step
        if step["at"] == "done":
            return


def _end_of(child: Child) -> str:
    """Returns how the process ended, if the steps of a task end without "done"."""
    return _LATE if child.is_late else child.end

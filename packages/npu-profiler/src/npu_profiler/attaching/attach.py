"""The command's side of `npu-profiler attach`: asks a running job to record, and waits.

The job's side is npu_profiler.attaching.listener.
"""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from npu_profiler.attaching.control import Mailbox, control_directory
from npu_profiler.errors import TraceError
from npu_profiler.output_file import check_writable
from npu_profiler.recording.recorder import TraceOptions

__all__ = ["attach", "detach"]

_ANSWER_S = 30.0
_LOOK_S = 0.1


def attach(
    pid: int, output: Path, *, seconds: float | None, options: TraceOptions
) -> list[str] | None:
    """Has the job `pid` record itself.

    Args:
        pid: a job that was started with NPU_ATTACH=1.
        output: the trace; the job writes it.
        seconds: how long; None until `detach`, and the call returns at once.
        options: how to record.

    Returns:
        The summary, line by line; None if it was not waited for.

    Raises:
        TraceError: [attach-absent] No such job waits; [attach-refused] it does not record, or ended
            before it did; [output-unwritable]; [attach-directory].
    """
    mailbox = _mailbox(pid)
    output = output.absolute()
    check_writable(output, "trace output")
    mailbox.ask({"output": str(output), "seconds": seconds, "options": dataclasses.asdict(options)})
    _wait(pid, mailbox, "recording", within_s=_ANSWER_S)
    if seconds is None:
        return None
    return list(_wait(pid, mailbox, "done", within_s=seconds + _ANSWER_S)["lines"])


def detach(pid: int) -> list[str]:
    """Ends what `attach` began without a length; returns the summary.

    Raises:
        TraceError: as `attach`.
    """
    mailbox = _mailbox(pid)
    mailbox.ask({"stop": True})
    return list(_wait(pid, mailbox, "done", within_s=_ANSWER_S)["lines"])


def _mailbox(pid: int) -> Mailbox:
    mailbox = Mailbox(control_directory(), pid)
    if not mailbox.is_announced():
        raise TraceError(
            f"attach: needs a job that waits for it; process {pid} does not. Start the job with "
            "NPU_ATTACH=1 in its environment, as the same user and with the same TMPDIR.",
            code="attach-absent",
        )
    return mailbox


def _wait(pid: int, mailbox: Mailbox, key: str, *, within_s: float) -> dict[str, Any]:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        state = mailbox.state() or {}
        if "error" in state:
            raise _refused(pid, state["error"])
        if key in state or "done" in state:
            return state
        if not _is_alive(pid):
            raise _refused(pid, "it ended meanwhile; the trace holds what was written until then")
        time.sleep(_LOOK_S)
    raise _refused(pid, f"it did not answer within {within_s:.0f} s")


def _refused(pid: int, why: str) -> TraceError:
    return TraceError(
        f"attach: process {pid} was to record itself, and: {why}", code="attach-refused"
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

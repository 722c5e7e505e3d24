"""The calls of a failing case as captures, which `npu-ops replay` repeats one by one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from npu_ops.debugging.capture import OpCapture
from npu_ops.debugging.replay import replay_directory
from npu_ops.op_conformance.cases.case import Case
from npu_ops.op_conformance.cases.evaluation import evaluate
from npu_ops.op_conformance.rules import Rules

__all__ = ["capture_case"]

_BUDGET_BYTES = 256 << 20


def capture_case(
    case: Case,
    check: str,
    directory: str | Path,
    *,
    device: str = "npu",
    rules: Rules | None = None,
) -> Path | None:
    """Runs a check of a case once more, and keeps those of its calls that are wrong on the device.

    Args:
        case: what failed.
        check: of its checks the one that failed.
        directory: where captures go: into a folder of the case's own, which is replaced.
        device: that was judged.
        rules: what the device wants of every case.

    Returns:
        The folder; None where no call shows the failure when it is made again alone, such as one
        that raises, or whose result is right but lies otherwise in memory.
    """
    folder = Path(directory) / re.sub(r"[^\w.-]+", "_", f"{case.id}-{check}")
    shutil.rmtree(folder, ignore_errors=True)
    with OpCapture(folder, names=(), excluded=(), budget_bytes=_BUDGET_BYTES):
        evaluate(case, check, device, adapt=(rules or Rules()).adapt)
    if not folder.is_dir():
        return None
    wrong = 0
    for replay in replay_directory(folder, device, run_times=0):
        if replay.is_right:
            shutil.rmtree(replay.folder)
        else:
            wrong += 1
    if not wrong:
        shutil.rmtree(folder)
        return None
    return folder

"""Runs the checks of a case against the CPU or a baseline, and captures calls that fail."""

from __future__ import annotations

import base64
import re
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.capture import OpCapture
from npu_ops.debugging.replay import replay_directory
from npu_ops.op_conformance.baseline import Baseline, checksum, pack
from npu_ops.op_conformance.cases.case import Case
from npu_ops.op_conformance.cases.judge import Evaluation, evaluate, judge
from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.rules import Rules

__all__ = ["capture_case", "case_cells", "case_records"]


def case_cells(
    case: Case,
    *,
    device: str = "npu",
    baseline: Baseline | None = None,
    rules: Rules | None = None,
    checks: tuple[str, ...] | None = None,
    is_compiled: bool = False,
) -> list[Cell]:
    """One cell for each check of a case.

    Args:
        case: what to run.
        device: the device that is judged.
        baseline: results of another machine; None for this one's CPU.
        rules: what the device wants of every case; None where it takes them as they are.
        checks: those to run; None for all of the case's.
        is_compiled: whether the device computes programs of torch.compile.
    """
    return [
        _cell(case, check, device, baseline, rules or Rules(), is_compiled=is_compiled)
        for check in case.checks
        if checks is None or check in checks
    ]


def case_records(case: Case, device: str) -> list[dict[str, Any]]:
    """The results of a case as plain data, for a baseline: one record for each check."""
    from safetensors.torch import save

    given = [leaf for leaf in tree_leaves(case.make_arguments()) if isinstance(leaf, torch.Tensor)]
    inputs = checksum(case)
    records = []
    for check in case.checks:
        evaluation = evaluate(case, check, device, is_host=device == "cpu")
        record, tensors = pack(evaluation, given)
        data = base64.b64encode(save(tensors)).decode() if tensors else ""
        records.append({"check": check, "inputs": inputs, "record": record, "data": data})
    return records


def _cell(
    case: Case,
    check: str,
    device: str,
    baseline: Baseline | None,
    rules: Rules,
    *,
    is_compiled: bool,
) -> Cell:
    start = time.perf_counter()
    expected: Evaluation | None
    if baseline is None:
        expected = evaluate(case, check, "cpu", is_host=True)
    else:
        expected = baseline.expected(case, check)
    outcome, detail = Outcome.EMPTY, "the baseline does not have it"
    if expected is not None and expected.error:
        detail = f"no result to compare with: {expected.error}"
    elif expected is not None:
        got = evaluate(case, check, device, adapt=rules.adapt, is_compiled=is_compiled)
        wrong = got.refusal or judge(
            case, check, *rules.meet(case, got, expected), is_compiled=is_compiled
        )
        outcome, detail = (Outcome.FAILED, wrong) if wrong else (Outcome.PASSED, "")
        if got.refusal:
            outcome = Outcome.EMPTY
    return Cell(
        subject=case.op,
        dtype=case.dtype,
        check=check,
        outcome=outcome,
        samples=int(outcome is not Outcome.EMPTY),
        failures=int(outcome is Outcome.FAILED),
        detail=detail,
        suite=case.suite,
        case=case.id,
        layout=case.layout,
        duration_s=round(time.perf_counter() - start, 4),
    )


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

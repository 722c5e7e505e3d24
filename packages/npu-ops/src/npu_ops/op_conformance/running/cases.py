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
    """Returns one cell per check of a case.

    Args:
        case: the case.
        device: the tested device.
        baseline: results of another machine; None for this machine's CPU.
        rules: the device's rules; None for no changes.
        checks: checks to run; None for all checks of the case.
        is_compiled: whether to use torch.compile on the device.
    """
    return [
        _cell(case, check, device, baseline, rules or Rules(), is_compiled=is_compiled)
        for check in case.checks
        if checks is None or check in checks
    ]


def case_records(case: Case, device: str) -> list[dict[str, Any]]:
    """Returns the results of a case as plain data for a baseline: one record per check."""
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
    """Repeats a check of a case, and captures its calls that are wrong on the device.

    Args:
        case: the failed case.
        check: the failed check.
        directory: directory of captures, in which the case's folder is replaced.
        device: the tested device.
        rules: the device's rules.

    Returns:
        The folder; None if no single call reproduces the failure, for example if a call raises, or
        only the result's strides differ.
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

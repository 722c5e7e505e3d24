"""The cells of one case: each of its checks on the device, held against the CPU or a baseline."""

from __future__ import annotations

import base64
import time
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.op_conformance.baseline import Baseline, checksum, pack
from npu_ops.op_conformance.cases.case import Case
from npu_ops.op_conformance.cases.evaluation import Evaluation, evaluate
from npu_ops.op_conformance.cases.judge import judge
from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.rules import Rules

__all__ = ["case_cells", "case_records"]


def case_cells(
    case: Case,
    *,
    device: str = "npu",
    baseline: Baseline | None = None,
    rules: Rules | None = None,
    checks: tuple[str, ...] | None = None,
) -> list[Cell]:
    """One cell for each check of a case.

    Args:
        case: what to run.
        device: the device that is judged.
        baseline: results of another machine; None for this one's CPU.
        rules: what the device wants of every case; None where it takes them as they are.
        checks: those to run; None for all of the case's.
    """
    return [
        _cell(case, check, device, baseline, rules or Rules())
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


def _cell(case: Case, check: str, device: str, baseline: Baseline | None, rules: Rules) -> Cell:
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
        got = evaluate(case, check, device, adapt=rules.adapt)
        wrong = judge(case, check, *rules.meet(case, got, expected))
        outcome, detail = (Outcome.FAILED, wrong) if wrong else (Outcome.PASSED, "")
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

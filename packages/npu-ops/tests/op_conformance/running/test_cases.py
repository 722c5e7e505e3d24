import dataclasses
from collections import OrderedDict

import pytest
import torch

from npu_ops.op_conformance import Outcome
from npu_ops.op_conformance.cases import Case, interface_cases
from npu_ops.op_conformance.interface import load_operators
from npu_ops.op_conformance.running.cases import case_cells

pytestmark = pytest.mark.filterwarnings("ignore")  # hundreds of ops warn; none of it is about npu


def sample():
    """The first case of each op that goes through all of its checks."""
    found = OrderedDict()
    for case in interface_cases().values():
        if case.dtype in ("float32", "int64", "bool", "complex64"):
            best = found.setdefault(case.op, case)
            if len(case.checks) > len(best.checks):
                found[case.op] = case
    return list(found.values())


@pytest.mark.parametrize("case", sample(), ids=lambda case: case.id)
def test_npu_equals_the_cpu(case):
    for cell in case_cells(case):
        assert cell.outcome is Outcome.PASSED, cell


def broken(monkeypatch, function):
    """A case of `abs`, for which `function` stands on npu."""

    def call(x):
        return function(x) if x.is_npu else torch.abs(x)

    operator = dataclasses.replace(load_operators()["abs"])
    monkeypatch.setitem(operator.__dict__, "function", lambda check="forward": call)
    monkeypatch.setitem(load_operators(), "abs", operator)
    case = Case("interface", "abs", "float32", "contiguous", {"input": "[9]"}, ("forward",))
    return case_cells(case)[0]


@pytest.mark.parametrize(
    "function, detail",
    [
        (lambda x: x, "not close"),
        (lambda x: x.cpu().abs(), "a result is on cpu"),
        (lambda x: x.abs_(), "an argument after the call"),
        (lambda x: x.no_such_thing, "got AttributeError"),
    ],
)
def test_a_wrong_op_fails(monkeypatch, function, detail):
    cell = broken(monkeypatch, function)
    assert cell.outcome is Outcome.FAILED
    assert detail in cell.detail

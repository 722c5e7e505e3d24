"""Graphs compiled by another vendor's compiler, a fake one."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.errors import OptionError, WrongResultWarning
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.suite import measurement
from npu_ops.op_conformance.cases import interface_cases
from npu_ops.op_conformance.cell import Outcome
from npu_ops.op_conformance.running.cases import case_cells

pytestmark = pytest.mark.usefixtures("fake_vendor")


class _Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def _compiled(device="cpu", **options):
    """Returns error, programs and eager calls of a small net."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    net, x = _Net().eval(), torch.randn(3, 8)
    with torch.no_grad(), collecting() as records:
        expected = net(x)
        run = torch.compile(net.to(device), backend="npu", options={"target": "fake-1", **options})
        results = [run(x.to(device)) for _ in range(2)]
    assert {result.device.type for result in results} == {device}
    error = max((result.cpu() - expected).abs().max().item() for result in results)
    (record,) = records
    return error, record.programs, record.eager


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_graph_is_one_program_of_the_target(fake_vendor, device):
    error, programs, eager = _compiled(device)
    assert 0 < error < 2e-3  # float16
    assert [(one.target, one.precision, one.node_count) for one in programs] == [
        ("f1", "float16", 3)
    ]
    assert programs[0].verdict.status == "right"
    assert eager == ()


def test_a_call_that_is_known_to_be_refused_runs_on_the_host(fake_vendor):
    fake_vendor.known = {"aten.tanh.default": "no tanh on this chip"}
    error, programs, (eager,) = _compiled()
    assert error < 2e-3
    assert len(programs) == 2
    assert (eager.op, eager.reason) == ("aten.tanh.default", "no tanh on this chip")
    assert all("aten.tanh.default" not in calls for calls in fake_vendor.seen)


@pytest.mark.parametrize("names_refused", [True, False])
def test_the_call_with_which_a_refusal_begins_is_searched_for(fake_vendor, names_refused):
    fake_vendor.refused = {"aten.tanh.default": "cannot place Tanh"}
    fake_vendor.names_refused = names_refused
    error, programs, (eager,) = _compiled()
    assert error < 2e-3
    assert len(programs) == 2
    assert eager.op == "aten.tanh.default"
    assert eager.reason == "NPU f1 (Fake One) refuses it: cannot place Tanh"


def test_wrong_results_are_found_at_the_first_call(fake_vendor):
    fake_vendor.wrong = ("aten.tanh.default",)
    with pytest.warns(WrongResultWarning, match="differed from torch"):
        error, _, eager = _compiled()
    assert error < 2e-3
    assert [one.op for one in eager] == ["aten.tanh.default"]


def test_an_expanded_result_goes_to_a_call_on_the_host(fake_vendor):
    fake_vendor.known = {"aten.tanh.default": "no tanh on this chip"}

    def expand(x):
        return torch.tanh(x.sum(0, keepdim=True).expand(4, 8))

    x = torch.randn(3, 8)
    run = torch.compile(expand, backend="npu", options={"target": "fake-1"})
    with torch.no_grad():
        assert torch.allclose(run(x), expand(x), atol=2e-3)
    assert fake_vendor.seen == [["aten.sum.dim_IntList", "aten.expand.default"]]


def test_training_stays_on_the_host(fake_vendor):
    net, x = _Net(), torch.randn(3, 8)
    run = torch.compile(net, backend="npu", options={"target": "fake-1"})
    with collecting() as records:
        run(x).sum().backward()
    assert fake_vendor.seen == []
    assert {one.reason for one in records[0].eager} == {
        "NPU f1 (Fake One) takes no graph of training"
    }


@pytest.mark.parametrize(
    "target, code", [("fake-2", "option-value"), ("4000", "target-form"), (3, "option-value")]
)
def test_a_target_that_runs_nothing_here_is_refused(target, code):
    run = torch.compile(_Net(), backend="npu", options={"target": target})
    with pytest.raises(OptionError) as error:
        run(torch.randn(3, 8))
    assert error.value.code == code


def test_a_target_of_the_environment_is_for_all_graphs(fake_vendor, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_TARGET", "f1")
    _, (program,), _ = _compiled(target=None)
    assert program.target == "f1"


def test_the_conformance_command_judges_its_programs(fake_vendor, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_TARGET", "f1")
    case = next(
        case
        for case in interface_cases().values()
        if (case.op, case.dtype, case.layout) == ("tanh", "float16", "contiguous")
    )

    def outcome():
        (cell,) = case_cells(case, checks=("forward",), is_compiled=True)
        return cell.outcome

    assert outcome() is Outcome.PASSED
    fake_vendor.wrong = ("aten.tanh.default",)
    assert outcome() is Outcome.FAILED
    fake_vendor.known = {"aten.tanh.default": "no tanh on this chip"}
    assert outcome() is Outcome.EMPTY


def test_the_model_suite_allows_the_targets_roundings():
    assert measurement._bound(None) == measurement.BOUND
    assert measurement._bound("f1") == 8 * torch.finfo(torch.float16).eps

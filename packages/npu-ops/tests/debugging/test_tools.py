"""Common parts of all op tools, and the small tools: lists, sampling, threads, findings."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from npu_ops.debugging import (
    OpAutoCompare,
    OpCapture,
    OpDtypeCast,
    OpFallback,
    OpObserve,
    OpOverflowCheck,
    OpTimeMeasure,
)
from npu_ops.errors import OperatorInputError, OpsError, VerificationError


def ops(tool: OpObserve) -> list[str]:
    return [str(row[2]) for row in tool.report().rows]


def test_a_list_names_ops_exactly_or_by_pattern() -> None:
    x = torch.ones(4, device="npu")
    for names, expected in (
        (["aten.add.Tensor"], ["aten.add.Tensor"]),
        (["add"], ["aten.add.Tensor"]),
        (["aten.*m*l*"], ["aten.mul.Tensor"]),
        ([], ["aten.add.Tensor", "aten.mul.Tensor"]),
    ):
        with OpObserve(names, []) as tool:
            _ = x + x, x * x
        assert ops(tool) == expected


def test_an_exclusion_wins_over_a_name() -> None:
    x = torch.ones(4, device="npu")
    with OpObserve(["add", "mul"], ["aten.mul.*"]) as tool:
        _ = x + x, x * x
    assert ops(tool) == ["aten.add.Tensor"]


def test_the_environment_gives_the_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_OBSERVE_LIST", "add, mul,sub")
    monkeypatch.setenv("OP_OBSERVE_DISABLE_LIST", "aten.mul.Tensor")
    x = torch.ones(4, device="npu")
    with OpObserve() as tool:
        _ = x + x, x * x, x / x
    assert ops(tool) == ["aten.add.Tensor"]


def test_sampling_takes_the_first_of_so_many_calls_of_each_op() -> None:
    x = torch.ones(4, device="npu")
    with OpObserve(["add", "mul"], every=3) as tool:
        for _ in range(4):
            _ = x + x
        _ = x * x
    assert ops(tool) == ["aten.add.Tensor", "aten.add.Tensor", "aten.mul.Tensor"]
    assert tool.selection.left_out == 2


def test_a_signature_is_taken_so_often() -> None:
    small, large = torch.ones(4, device="npu"), torch.ones(8, device="npu")
    with OpObserve(["add"], per_signature=1) as tool:
        _ = small + small, small + small, large + large, small + 2
    assert [row[3] for row in tool.report().rows] == [
        "float32[4], float32[4]",
        "float32[8], float32[8]",
        "float32[4], 2",
    ]


@pytest.mark.parametrize(
    "make, got",
    [
        (lambda: OpObserve("add"), "'add'"),
        (lambda: OpObserve(every=0), "got 0"),
        (lambda: OpObserve(per_signature=0), "got 0"),
        (lambda: OpObserve(level=4), "got 4"),
        (lambda: OpOverflowCheck(limit=-1.0), "got -1.0"),
        (lambda: OpDtypeCast(dtype=torch.int8), "got torch.int8"),
        (lambda: OpCapture("there", budget_bytes=0), "got 0"),
    ],
    ids=["string", "every", "per-signature", "level", "limit", "dtype", "budget"],
)
def test_an_option_that_a_tool_cannot_have_is_an_error(make: Any, got: str) -> None:
    with pytest.raises(OperatorInputError, match=got.replace("[", r"\[")) as caught:
        make()
    assert caught.value.code == "tool-option"


def test_tools_stop_in_the_reverse_order() -> None:
    first, second = OpObserve().start(), OpTimeMeasure().start()
    with pytest.raises(OpsError, match=r"OpObserve\.stop") as caught:
        first.stop()
    assert caught.value.code == "tool-order"
    second.stop()
    first.stop()


def test_a_tool_that_stopped_sees_no_more() -> None:
    x = torch.ones(4, device="npu")
    tool = OpObserve(["add"]).start()
    _ = x + x
    tool.stop()
    _ = x + x
    assert ops(tool) == ["aten.add.Tensor"]


def test_tools_do_not_see_each_others_work() -> None:
    x = torch.linspace(0, 1, 8).to("npu")
    with OpObserve(level=3) as observer, OpAutoCompare(), OpOverflowCheck():
        _ = x.exp()
    assert ops(observer) == ["aten.exp.default"]


def test_backward_ops_are_seen_with_the_node_that_called_them() -> None:
    x = torch.ones(4, device="npu", requires_grad=True)
    with OpObserve(["mul", "exp"]) as tool:
        x.exp().sum().backward()
    assert [(row[1], row[2], row[5]) for row in tool.report().rows][1:] == [
        ("backward", "aten.mul.Tensor", "ExpBackward0")
    ]
    assert str(tool.report().rows[0][5]).startswith(__file__)


def test_backward_on_another_thread_is_seen_by_a_tool_entered_there() -> None:
    x = torch.ones(64, device="npu", requires_grad=True)
    tool = OpAutoCompare()

    def work() -> None:
        with tool:
            (x.exp() * 2).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tool.passed, tool.report()
    numbers = [row[0] for row in tool.report().rows]
    assert len(numbers) == len(set(numbers)) >= 3 * 6


class Nested(torch.autograd.Function):
    """A backward within a backward; past sixty of them autograd continues in separate threads."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth:
            with torch.enable_grad():
                inner = gradient.detach().requires_grad_()
                Nested.apply(inner, ctx.depth - 1).sum().backward()
        else:
            torch.cosh(gradient)
            Nested.thread = threading.get_ident()
        return gradient, None


def test_ops_on_threads_of_autograd_are_seen() -> None:
    x = torch.ones(2, device="npu", requires_grad=True)
    with OpObserve(["cosh"]) as tool:
        Nested.apply(x, 70).sum().backward()
    assert Nested.thread != threading.get_ident()
    assert ops(tool) == ["aten.cosh.default"]
    assert tool.report().rows[0][1] == "backward"


def test_levels_of_detail() -> None:
    x = torch.tensor([1.0, float("nan"), 3.0], device="npu")
    texts = []
    for level in (1, 2, 3):
        stream = io.StringIO()
        with OpObserve(["neg"], level=level, stream=stream):
            _ = -x
        texts.append(stream.getvalue())
    assert texts[0].startswith("1 forward aten.neg.default  ")
    assert "(float32[3]) -> float32[3]" in texts[1]
    assert "{1 to 3, mean 2, 1 NaN}) -> float32[3], {-3 to -1, mean -2, 1 NaN}" in texts[2]


def test_times_are_of_both_phases() -> None:
    x = torch.ones(64, 64, device="npu", requires_grad=True)
    with OpTimeMeasure(["mm"]) as tool:
        (x @ x).sum().backward()
    rows = {row[1]: row for row in tool.report().rows}
    assert [rows[phase][2] for phase in ("forward", "backward")] == [1, 2]
    assert tool.total_ms("forward") > 0 < tool.total_ms("backward")


def test_fallback_goes_past_the_devices_kernel(plant: Any) -> None:
    x = torch.ones(4, device="npu")
    plant("exp", lambda x: x.clone())
    assert torch.exp(x)[0].item() == 1.0
    with OpFallback(["exp"]) as tool:
        assert torch.exp(x)[0].item() == pytest.approx(2.71828, rel=1e-5)
    assert tool.counts == {"aten.exp.default": 1}


def test_fallback_of_all_but_named_ops() -> None:
    x = torch.ones(4, device="npu")
    with OpFallback([], ["exp"]) as tool:
        _ = x.exp().log()
    assert list(tool.counts) == ["aten.log.default"]


def test_fallback_writes_in_place_through_views() -> None:
    x = torch.zeros(4, 4, device="npu")
    row = x[1]
    with OpFallback() as tool:
        assert row.add_(1) is row
        x.t_().mul_(3)
    assert tool.counts.total() == 2
    assert x[:, 1].tolist() == [3.0] * 4
    assert x.sum().item() == 12


def test_fallback_draws_from_the_devices_stream() -> None:
    torch.npu.manual_seed(3)
    expected = [torch.rand(4, device="npu").tolist() for _ in range(2)]
    torch.npu.manual_seed(3)
    with OpFallback():
        first = torch.rand(4, device="npu")
    assert [first.tolist(), torch.rand(4, device="npu").tolist()] == expected
    assert first.device.type == "npu"


def test_a_cast_op_computes_in_the_other_dtype_and_gives_its_own() -> None:
    x = torch.full((4096,), 0.1, device="npu", dtype=torch.bfloat16)
    y = x.clone()
    with OpDtypeCast(["cumsum", "add_"], dtype=torch.float64) as tool:
        total = torch.cumsum(x, 0)
        assert y.add_(1) is y
    assert total.dtype is y.dtype is torch.bfloat16
    assert y[0].item() == torch.tensor(1.1, dtype=torch.bfloat16).item()
    assert total[-1].item() == pytest.approx(4096 * 0.1, rel=0.01)
    assert tool.counts == {"aten.cumsum.default": 1, "aten.add_.Tensor": 1}


@pytest.mark.parametrize(
    "tool", [OpFallback(), OpDtypeCast(dtype=torch.float64)], ids=["cpu", "cast"]
)
def test_statistics_that_a_schema_does_not_call_written_are_written(tool: Any) -> None:
    layer, twin = (torch.nn.BatchNorm1d(4).to("npu") for _ in range(2))
    x = torch.linspace(-3, 5, 32).view(8, 4).to("npu")
    layer(x)
    with tool:
        twin(x)
    torch.testing.assert_close(twin.running_mean, layer.running_mean)
    torch.testing.assert_close(twin.running_var, layer.running_var)
    assert tool.counts["aten.native_batch_norm.default"] == 1


def test_the_origin_of_a_nan_is_told_from_those_that_pass_it_on() -> None:
    x = torch.tensor([1.0, -1.0], device="npu")
    with OpOverflowCheck() as tool:
        _ = x.log() + 1
    assert tool.origins == ["aten.log.default(float32[2])"]
    assert [row[6] for row in tool.report().rows] == ["origin", "passed on"]
    assert not tool.passed


def test_a_limit_shows_what_half_precision_could_not_hold() -> None:
    x = torch.tensor([300.0], device="npu")
    with OpOverflowCheck() as free, OpOverflowCheck(limit=65504) as limited:
        _ = x * x
    assert free.passed
    assert limited.origins == ["aten.mul.Tensor(float32[1], float32[1])"]


def test_a_fatal_check_raises_at_the_origin() -> None:
    x = torch.zeros(1, device="npu")
    says = r"aten\.reciprocal.*1 infinities"
    with OpOverflowCheck(is_fatal=True), pytest.raises(VerificationError, match=says) as caught:
        x.reciprocal()
    assert caught.value.code == "op-overflow"


def test_captures_do_not_mix_with_what_a_directory_holds(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OperatorInputError, match="must be new or empty") as caught:
        OpCapture(tmp_path)
    assert caught.value.code == "directory-taken"


def test_an_error_of_an_op_reaches_the_program() -> None:
    x, y = torch.ones(2, 3, device="npu"), torch.ones(2, 3, device="npu")
    with OpAutoCompare() as tool, pytest.raises(RuntimeError, match="mat1 and mat2"):
        x @ y
    assert tool.passed


def test_tensors_on_two_devices_are_the_programs_error_and_not_the_devices() -> None:
    with OpAutoCompare() as tool, pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="npu") / torch.ones(2)
    assert tool.passed, tool.report()
    assert "two devices" in str(tool.report().rows[-1])


def test_a_tolerance_is_set_by_op_before_dtype(plant: Any) -> None:
    x = torch.ones(4, device="npu")
    plant("exp", lambda x: (x.cpu().exp() * 1.01).to("npu"))
    results = []
    for tolerances in ({}, {torch.float32: (0.1, 0.0)}, {"exp": (0.0, 0.0), torch.float32: (1, 1)}):
        with OpAutoCompare(tolerances=tolerances) as tool:
            x.exp()
        results.append(tool.passed)
    assert results == [False, True, False]


def test_a_difference_is_measured_and_captured(plant: Any, tmp_path: Path) -> None:
    plant("exp", lambda x: (x.cpu().exp() * 2).to("npu"))
    with OpAutoCompare(captures=tmp_path / "bad") as tool:
        torch.zeros(4, device="npu").exp()
    ((signature, verdict),) = tool.differences
    assert signature == "aten.exp.default(float32[4])"
    assert verdict.max_absolute_error == verdict.max_relative_error == 1.0
    assert verdict.cosine == pytest.approx(1.0)
    assert verdict.precision == "float64"
    (folder,) = (tmp_path / "bad").iterdir()
    assert folder.name.endswith("-aten.exp.default")
    with pytest.raises(VerificationError, match="1 differ") as caught:
        tool.raise_if_failed()
    assert caught.value.code == "op-differs"

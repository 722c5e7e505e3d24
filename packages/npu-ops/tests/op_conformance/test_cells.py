"""A comparison that cannot fail is useless: wrong ops, modules and devices must be detected."""

import types

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from npu_ops.op_conformance import Outcome, operator_cells
from npu_ops.op_conformance.cell import cell_of
from npu_ops.op_conformance.comparison import difference, placement


def one_sample(op_info, device, dtype, requires_grad, **_):
    yield SampleInput(torch.ones(3, dtype=dtype, device=device, requires_grad=requires_grad))


def info(op, **options):
    return OpInfo(
        "made_up", op=op, dtypes=(torch.float32,), sample_inputs_func=one_sample, **options
    )


def cells(op, *checks, **options):
    return operator_cells(info(op, **options), torch.float32, checks=checks)


def wrong_on_npu(x):
    return x + x.is_npu


def wrong_gradient_on_npu(x):
    return x * 2 if not x.is_npu else x * 3 - x.detach()


def raises_on_npu(x):
    if x.is_npu:
        raise ValueError
    return x + 1


def back_on_the_cpu(x):
    return x.cpu() + 1


@pytest.mark.parametrize(
    "op, check, detail",
    [
        (wrong_on_npu, "forward", "Tensor-likes are not close"),
        (wrong_on_npu, "non-contiguous", "Tensor-likes are not close"),
        (wrong_gradient_on_npu, "backward", "Tensor-likes are not close"),
        (raises_on_npu, "forward", "expected a result (Tensor), got ValueError"),
        (back_on_the_cpu, "forward", "a result is on cpu"),
    ],
)
def test_a_wrong_op_fails(op, check, detail):
    (cell,) = cells(op, check)
    assert cell.outcome is Outcome.FAILED
    assert (cell.samples, cell.failures) == (1, 1)
    assert detail in cell.detail


def test_a_right_op_passes():
    assert [cell.outcome for cell in cells(torch.exp, "forward", "backward", "out")] == [
        Outcome.PASSED
    ] * 3


def test_an_inplace_variant_that_writes_elsewhere_fails():
    def add_(x):
        return x + 1 if x.is_npu else x.add_(1)

    (cell,) = cells(torch.exp, "in-place", inplace_variant=add_)
    assert cell.outcome is Outcome.FAILED


def test_an_out_variant_that_writes_nothing_fails():
    def exp(x, *, out=None):
        return torch.exp(x) if out is None or out.is_npu else torch.exp(x, out=out)

    (cell,) = cells(exp, "out")
    assert (cell.samples, cell.failures) == (2, 2)  # right shape, and one to be resized


def test_a_check_that_does_not_apply_is_empty():
    (cell,) = operator_cells(info(torch.exp), torch.bfloat16, checks=("backward",))
    assert cell.outcome is Outcome.EMPTY


def test_a_sample_that_cannot_be_made_fails():
    def samples():
        yield lambda: None
        raise RuntimeError("no more")

    cell = cell_of("made_up", "float32", "forward", samples())
    assert cell.outcome is Outcome.FAILED
    assert cell.detail == "sample 2 cannot be made: RuntimeError: no more"


def test_the_class_of_an_error_is_compared():
    assert difference(ValueError, ValueError) is None
    assert difference(ValueError, IndexError) == "expected IndexError, got ValueError"


def test_a_place_is_asked_for_by_a_tensor_or_by_name():
    assert placement(["npu"], torch.ones(1)) == "a result is on cpu"
    assert placement([torch.ones(1)], torch.ones(1)) is None
    assert placement([torch.ones(1, device="npu")], types.SimpleNamespace()) is None


def test_tensors_without_values_are_compared_by_shape():
    assert difference(torch.ones(2, device="meta"), torch.ones(2, device="meta")) is None
    assert difference(torch.ones(2, device="meta"), torch.ones(3, device="meta")) is not None

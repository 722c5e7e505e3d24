"""A sample of `python -m npu_ops.op_conformance.fuzz`, and that it finds planted faults."""

import pytest
import torch
from hypothesis import given, settings

from npu_ops.op_conformance.fuzz.__main__ import main, op_names
from npu_ops.op_conformance.fuzz.call import (
    Call,
    Mark,
    TensorSpec,
    is_comparable,
    is_undefined,
    place,
)
from npu_ops.op_conformance.fuzz.strategies import calls
from npu_ops.op_conformance.fuzz.supervision import Finding, Kind, make_alone, make_child, run_tasks
from npu_ops.op_conformance.fuzz.worker import _strides

pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse|quantize)", "ignore:.*deprecated")

ADD = "aten::add.Tensor"
SCHEMA = torch.ops.aten.add.Tensor._schema


def test_a_sample_of_calls_ends_as_on_the_cpu(forked_children, capsys):
    code = main(["--calls=300", "--seed=0", "--jobs=1"])
    shown = capsys.readouterr()
    assert code == 0, shown.out + shown.err
    assert "0 to fix" in shown.out


@settings(max_examples=30, database=None, deadline=None)
@given(calls(ADD, SCHEMA))
def test_a_call_comes_back_from_its_line(call):
    line = call.to_json()  # not the calls: NaN differs from itself
    assert Call.from_json(line).to_json() == line


def test_tensors_share_overlap_and_start_as_the_call_says():
    first = TensorSpec((3, 2), strides=(1, 1), offset=1)
    second = TensorSpec((2,), storage=0)
    (made, other), _ = place(Call(ADD, [first, second]).build(), "npu")
    assert made.device.type == "npu"
    assert (made.stride(), made.storage_offset()) == ((1, 1), 1)
    other.zero_()
    assert made[0, 0] == 0


def test_a_sparse_and_a_quantized_tensor_arrive():
    sparse, quantized = (TensorSpec((2, 2), layout=name) for name in ("sparse_csr", "qint8"))
    (made, other), _ = place(Call(ADD, [sparse, quantized]).build(), "npu")
    assert (made.layout, other.dtype) == (torch.sparse_csr, torch.qint8)
    assert {made.device.type, other.device.type} == {"npu"}


@pytest.mark.parametrize(
    "leaf, is_mixed",
    [
        (TensorSpec((2,), place="cpu"), True),
        (Mark("device", "cpu"), True),
        (Mark("device", "device"), False),
        (TensorSpec((2,)), False),
    ],
)
def test_a_call_over_several_devices_is_known_as_such(leaf, is_mixed):
    assert Call(ADD, [leaf]).is_mixed is is_mixed


def test_a_signal_is_a_finding_and_the_rest_goes_on(forked_children):
    # Steps through memory with strides that torch's kernel does not check.
    far = Call("aten::_reshape_alias_copy", [TensorSpec((2,)), [2], [2**40]])
    assert "SIGSEGV" in make_alone(make_child(timeout_s=120), far.to_json(), "cpu")
    assert make_alone(make_child(timeout_s=120), far.to_json(), "npu") == "RuntimeError"
    task = {"op": ADD, "calls": 5, "seed": 0, "skip": 0}
    findings = []
    tally = run_tasks([task], jobs=1, timeout_s=120, on_finding=findings.append)
    assert (tally.calls, findings) == (5, [])


def test_only_what_npu_does_worse_is_ours():
    assert Finding(Kind.SIGNAL, ADD, "", "").is_ours
    assert Finding(Kind.DIFFERENCE, ADD, "", "").is_ours
    assert not Finding(Kind.SIGNAL_ON_CPU, ADD, "", "").is_ours
    assert not Finding(Kind.REFUSED, ADD, "", "").is_ours


def test_a_call_without_a_tensor_or_a_device_asks_no_kernel_of_npu():
    assert not Call("aten::promote_types", [6, 7]).names_device
    assert not Call("aten::_stack", [[], 0]).names_device
    assert Call("aten::_stack.out", [[], 0], {"out": TensorSpec((2,))}).names_device
    assert Call(
        "aten::empty.memory_format", [[2]], {"device": Mark("device", "device")}
    ).names_device


def test_strides_are_compared_where_they_are_to_be_seen():
    rows, columns = torch.ones(2, 3), torch.ones(3, 2).t()
    assert _strides([rows], [columns]) == "expected strides (1, 2), got (3, 1)"
    assert _strides([rows[:1]], [columns[:1]]) == "expected strides (1, 2), got (3, 1)"
    assert _strides([rows[:, :1]], [columns[:, :1].contiguous()]) is not None
    assert _strides([torch.ones(1, 3)], [torch.ones(3, 1).t()]) is None


def test_torch_gives_an_unset_value_for_a_polynomial_of_nan():
    # The fuzzer compares no values there, because earlier results show only on the CPU.
    def last(before):
        x = torch.tensor([float("nan"), before, float("nan")])
        return torch.special.chebyshev_polynomial_w(x, torch.full((3,), 5.0))[2]

    assert last(2.0) != last(3.0)
    nan = Call("aten::special_chebyshev_polynomial_w.x_scalar", [float("nan"), TensorSpec((3,))])
    assert is_undefined(nan)
    assert not is_undefined(Call("aten::special_chebyshev_polynomial_w", [TensorSpec((3,))] * 2))


def test_torch_reads_beyond_a_padding_of_too_few_numbers():
    op, line = "aten::reflection_pad1d_backward", TensorSpec((2, 4, 1))
    short = Call(op, [line, line, [0]])
    assert not is_comparable(short)
    assert is_comparable(Call(op, [line, line, [0, 0]]))
    assert is_comparable(Call(op, [line]))
    given, _ = place(short.build(), "npu")
    with pytest.raises(RuntimeError, match="argument-contract"):
        short.function(*given)


def test_ops_are_those_with_a_cpu_kernel():
    names = op_names()
    assert len(names) > 2000
    assert ADD in names
    assert not any(name.startswith("aten::fbgemm_") for name in names)

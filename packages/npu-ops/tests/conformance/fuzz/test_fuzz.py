"""A sample of `python -m npu_ops.conformance.fuzz`, and that it sees what it looks for."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings

from npu_ops.conformance.fuzz.__main__ import op_names
from npu_ops.conformance.fuzz.call import Call, Mark, TensorSpec, place
from npu_ops.conformance.fuzz.strategies import calls
from npu_ops.conformance.fuzz.supervision import Child, Finding, Kind, make_alone, run_tasks

pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse|quantize)", "ignore:.*deprecated")

ADD = "aten::add.Tensor"
SCHEMA = torch.ops.aten.add.Tensor._schema


def test_a_sample_of_calls_ends_as_on_the_cpu():
    command = [sys.executable, "-m", "npu_ops.conformance.fuzz", "--calls=300", "--seed=0"]
    done = subprocess.run([*command, "--jobs=1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 to mend" in done.stdout


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


def test_a_signal_is_a_finding_and_the_rest_goes_on():
    # Steps through memory with strides that nothing checks: aten takes them on trust.
    far = Call("aten::_reshape_alias", [TensorSpec((2,)), [2], [2**40]])
    assert "SIGSEGV" in make_alone(Child(timeout_s=120), far.to_json(), "cpu", "npu")
    task = {"op": ADD, "calls": 5, "seed": 0, "skip": 0}
    findings = []
    tally = run_tasks([task], jobs=1, timeout_s=120, on_finding=findings.append)
    assert (tally.calls, findings) == (5, [])


def test_only_what_npu_does_worse_is_ours():
    assert Finding(Kind.SIGNAL, ADD, "", "").is_ours
    assert Finding(Kind.DIFFERENCE, ADD, "", "").is_ours
    assert not Finding(Kind.SIGNAL_ON_BOTH, ADD, "", "").is_ours


def test_ops_are_those_with_a_cpu_kernel():
    names = op_names()
    assert len(names) > 2000
    assert ADD in names
    assert not any(name.startswith("aten::fbgemm_") for name in names)

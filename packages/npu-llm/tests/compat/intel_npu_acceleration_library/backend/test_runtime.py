"""Products and operators on tensors."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import npu_runtime
from npu_llm.compat.intel_npu_acceleration_library import dtypes
from npu_llm.compat.intel_npu_acceleration_library.backend import (
    MLP,
    Convolution,
    SimpleSDPA,
    clear_cache,
    run_factory,
    run_matmul,
    runtime,
)
from npu_llm.compat.intel_npu_acceleration_library.backend.runtime import (
    get_driver_version,
    npu_available,
)
from npu_llm.compat.intel_npu_acceleration_library.nn.layers import Linear
from npu_llm.compat.intel_npu_acceleration_library.quantization import (
    compress_to_i4,
    quantize_tensor,
)
from npu_llm.errors import OptionError
from npu_runtime.errors import DeviceError


def close(found, expected):
    torch.testing.assert_close(found.float(), expected.float(), atol=0.02, rtol=0.02)


@pytest.fixture(autouse=True)
def _no_programs():
    clear_cache()
    yield
    clear_cache()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_a_product_has_the_dtype_and_the_rows_of_x(dtype):
    x, weight = torch.randn(2, 3, 8, dtype=dtype), torch.randn(4, 8, dtype=dtype)
    found = run_matmul(x, weight, None, "name")
    assert (found.dtype, found.shape) == (dtype, (2, 3, 4))
    close(found, x.half().float() @ weight.half().float().T)


def test_programs_are_shared_by_equal_sizes_and_not_by_other_weights():
    x, weight = torch.randn(3, 8), torch.randn(4, 8)
    for factor in (1, -1):
        close(run_matmul(x, factor * weight), factor * x @ weight.T)
    assert len(runtime._programs) == 1
    integers, scale = quantize_tensor(weight, (-8, 7))
    run_matmul(x, integers, scale)
    run_matmul(x, compress_to_i4(integers), scale)
    assert len(runtime._programs) == 3


@pytest.mark.parametrize("is_packed", [False, True])
def test_integers_divide_by_the_root_which_users_are_told_and_layers_know(told, is_packed):
    torch.manual_seed(0)
    x, weight = torch.randn(3, 16), torch.randn(4, 16)
    integers, scale = quantize_tensor(weight, (-8, 7))
    given = compress_to_i4(integers) if is_packed else integers
    told.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Linear.fromTensor(weight, None, torch.int8).eval()(x)
    with pytest.warns(dtypes.ConventionWarning, match="multiplied by it"):
        found = run_matmul(x, given, scale)
    close(found, x @ (integers * scale.float()).T / 4)


@pytest.mark.parametrize(
    "x, weight, scale",
    [
        (torch.ones(()), torch.ones(4, 8), None),
        (torch.ones(2, 7), torch.ones(4, 8), None),
        (torch.ones(2, 8, dtype=torch.int32), torch.ones(4, 8), None),
        (torch.ones(2, 8), torch.ones(4, 8, dtype=torch.int32), torch.ones(4, 1)),
        (torch.ones(2, 8), torch.ones(4, 8, dtype=torch.int8), None),
    ],
)
def test_products_of_other_arguments_are_refused(x, weight, scale):
    with pytest.raises(OptionError, match="`run_matmul` must have x") as error:
        run_matmul(x, weight, scale)
    assert error.value.code == "matmul-arguments"


@pytest.mark.parametrize("shape", [(8,), (0, 8), (2, 0, 8)])
def test_products_take_one_row_without_an_axis_and_no_rows(shape):
    x, weight = torch.ones(shape), torch.ones(4, 8)
    assert torch.equal(run_matmul(x, weight), F.linear(x, weight))


def test_what_is_no_tensor_is_refused():
    array = np.ones((2, 4), np.float16)
    for call in (
        lambda: run_matmul(array, torch.ones(2, 4)),
        lambda: run_factory(array, [], SimpleSDPA),
        lambda: run_factory([], [], SimpleSDPA),
    ):
        with pytest.raises(OptionError, match="tensor") as error:
            call()
        assert error.value.code == "graph-array"


def test_an_operator_is_made_for_its_arguments_not_only_its_class():
    x = torch.randn(1, 2, 4, 8)
    for is_causal in (True, False):
        found = run_factory([x, x, x], [], partial(SimpleSDPA, is_causal=is_causal))
        assert found.dtype is torch.float32
        close(found, F.scaled_dot_product_attention(x, x, x, is_causal=is_causal))


def test_the_programs_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(runtime, "_MOST_PROGRAMS", 2)
    for rows in (1, 2, 1, 3):
        run_matmul(torch.ones(rows, 4), torch.ones(2, 4))
    assert [key[-1] for key in runtime._programs] == [1, 3]


@pytest.mark.parametrize("activation", ["swiglu", "clamp", "elu", "gelu", "relu"])
def test_a_perceptron_is_two_layers_with_an_activation(activation):
    numbers = {"clamp": {"min": -0.5, "max": 1.0}, "elu": {"alpha": 2.0}}.get(activation, {})
    x, up, gate, down = (torch.randn(s).half() / 4 for s in ((3, 8), (16, 8), (16, 8), (8, 16)))
    wide = x.float() @ up.float().T
    if activation == "swiglu":
        wide = F.silu(wide) * (x.float() @ gate.float().T)
    elif activation == "gelu":
        wide = F.gelu(wide, approximate="tanh")
    else:
        wide = getattr(F, activation, torch.clamp)(wide, **numbers)
    weights = [up, gate, down] if activation == "swiglu" else [up, down]
    make = partial(MLP, intermediate_size=16, activation=activation, **numbers)
    close(run_factory(x, weights, make), wide @ down.float().T)


def test_another_activation_is_refused():
    with pytest.raises(OptionError, match="`activation` must be one of abs") as error:
        MLP((2, 4), 8, "maxout")
    assert error.value.code == "compat-activation"


def test_one_bound_of_clamp_is_that_bound():
    x, up, down = (torch.randn(s).half() / 4 for s in ((3, 8), (16, 8), (8, 16)))
    make = partial(MLP, intermediate_size=16, activation="clamp", max=0.1)
    wide = (x.float() @ up.float().T).clamp(max=0.1)
    close(run_factory(x, [up, down], make), wide @ down.float().T)
    with pytest.raises(OptionError, match="must have min or max"):
        MLP((2, 4), 8, "clamp")


def test_a_perceptron_takes_rows():
    with pytest.raises(OptionError, match=r"\(batch, channels\), got \(2, 3, 4\)"):
        MLP((2, 3, 4), 8)


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_takes_groups_as_a_first_axis(bias):
    x, weight = torch.randn(1, 4, 6, 6), torch.randn(2, 3, 2, 3, 3)
    offset = torch.randn(6) if bias else None
    make = partial(Convolution, weights_shape=weight.shape, bias=bias, padding=1, groups=2)
    found = run_factory(x, [weight, *([offset] if bias else [])], make)
    expected = F.conv2d(x, weight.flatten(0, 1), offset, padding=1, groups=2)
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.02)


def test_a_processor_in_its_place_is_no_npu():
    serves = npu_runtime.device_info(0).device.startswith("NPU")
    assert npu_available() is serves
    if not serves:
        with pytest.raises(DeviceError, match="must have an NPU") as error:
            get_driver_version()
        assert error.value.code == "device-absent"


def test_the_drivers_version_is_its_last_number(monkeypatch):
    class Info:
        device, driver_version = "NPU", "1.2.2408"

    monkeypatch.setattr(runtime.npu_runtime, "device_info", lambda index: Info)
    assert get_driver_version() == 2408

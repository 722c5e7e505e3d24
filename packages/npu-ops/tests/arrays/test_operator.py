"""Common parts of all array operators: the device argument, layers, threads, a lazy import."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import npu_ops
import npu_runtime
from npu_ops.errors import OperatorInputError


def ones(*shape):
    return np.ones(shape, np.float32)


def test_the_device_that_serves_can_be_named():
    serving = npu_runtime.device_info().device
    for device in (None, "npu", "npu:0", serving, serving.lower()):
        product = npu_ops.MatMul(4, 2, 1, device=device)
        assert product.device == serving
        assert product.run(ones(1, 4), ones(2, 4)).tolist() == [[4, 4]]


def test_another_device_is_an_error_and_never_replaced():
    with pytest.raises(OperatorInputError, match="got 'TPU'") as error:
        npu_ops.MatMul(4, 2, 1, device="TPU")
    assert error.value.code == "operator-device"
    with pytest.raises(npu_runtime.DeviceError) as error:
        npu_ops.MatMul(4, 2, 1, device="npu:7")
    assert error.value.code == "device-index"


def test_profile_gives_times_of_layers():
    product = npu_ops.MatMul(256, 256, 64, profile=True)
    assert product.layers == ()
    product.run(ones(64, 256), ones(256, 256))
    layers = product.layers
    assert layers
    assert sum(layer.duration_us for layer in layers) > 0
    assert all(layer.name and layer.type for layer in layers)


def test_without_profile_there_are_no_layers():
    product = npu_ops.MatMul(4, 2, 1)
    product.run(ones(1, 4), ones(2, 4))
    assert product.layers == ()


def test_threads_share_an_operator():
    product = npu_ops.MatMul(64, 32, 8)

    def call(number):
        x = np.full((8, 64), number, np.float32)
        return product.run(x, ones(32, 64))[0, 0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(call, range(40))) == [64 * number for number in range(40)]


def test_importing_npu_ops_does_not_import_openvino():
    code = (
        "import sys, torch, npu_ops\n"
        "assert 'openvino' not in sys.modules\n"
        "assert 'npu_ops.arrays' not in sys.modules\n"
        "npu_ops.MatMul\n"
        "assert 'openvino' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_name_can_be_had_and_no_other():
    for name in npu_ops.__all__:
        assert getattr(npu_ops, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Matmul'"):
        _ = npu_ops.Matmul

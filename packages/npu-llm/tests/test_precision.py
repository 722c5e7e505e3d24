import numpy as np
import pytest
import torch

from npu_llm.errors import OptionError
from npu_llm.precision import (
    PRECISIONS,
    cache_dtype,
    cache_dtype_name,
    compile_options,
    parse_precision,
)
from npu_runtime import device_info


@pytest.mark.parametrize("name", PRECISIONS)
def test_names(name):
    assert parse_precision(name).name == name


@pytest.mark.parametrize(
    "dtype, name",
    [
        (torch.float32, "float32"),
        (torch.bfloat16, "bfloat16"),
        (torch.float16, "float16"),
        (torch.int8, "int8"),
    ],
)
def test_torch_dtypes(dtype, name):
    assert parse_precision(dtype).name == name


@pytest.mark.parametrize("dtype", [None, "auto"])
def test_the_default_depends_on_the_model(dtype):
    assert parse_precision(dtype) is None


@pytest.mark.parametrize(
    "dtype",
    [
        "float8", "fp32", "", "torch.float32", torch.int64, torch.float8_e5m2, 32,
        np.dtype("float32"),
    ],
)  # fmt: skip
def test_anything_else_is_an_error_that_lists_the_choices(dtype):
    with pytest.raises(OptionError) as caught:
        parse_precision(dtype)
    assert caught.value.code == "unknown-dtype"
    assert repr(dtype) in str(caught.value)
    assert all(name in str(caught.value) for name in PRECISIONS)


@pytest.mark.parametrize("name", PRECISIONS)
def test_names_of_dtypes_are_torchs(name):
    precision = PRECISIONS[name]
    assert str(precision.torch_dtype) == f"torch.{precision.dtype_name}"
    assert str(cache_dtype(precision)) == f"torch.{cache_dtype_name(precision)}"


@pytest.mark.parametrize("name", PRECISIONS)
def test_activations_are_quantized_beside_compressed_weights_only(name):
    options = compile_options(PRECISIONS[name])
    if device_info().device.startswith("NPU"):  # its plugin does not know such a property
        assert "DYNAMIC_QUANTIZATION_GROUP_SIZE" not in options
        return
    expected = "64" if name in ("file", "int8", "int4") else "0"
    assert options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == expected

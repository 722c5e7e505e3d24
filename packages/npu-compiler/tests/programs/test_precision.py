"""Options for a precision: everything that changes results is set."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.errors import OptionError
from npu_compiler.programs import compile_options, precision_name
from npu_compiler.programs.device_options import device_options


@pytest.mark.parametrize("dtype", [torch.float32, "float32", "int8", "int4"], ids=str)
def test_float32_is_float32_throughout(dtype):
    options = compile_options(dtype, device="CPU")
    assert options["INFERENCE_PRECISION_HINT"] == "f32"
    assert options["KV_CACHE_PRECISION"] == "f32"
    assert options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "0"


@pytest.mark.parametrize(
    "precision, hint, capability", [("bfloat16", "bf16", "BF16"), ("float16", "f16", "FP16")]
)
def test_processor_without_a_format_computes_in_float32(precision, hint, capability):
    able = device_options(precision, device="CPU", capabilities=["FP32", capability])
    unable = device_options(precision, device="CPU", capabilities=["FP32"])
    assert able["INFERENCE_PRECISION_HINT"] == able["KV_CACHE_PRECISION"] == hint
    assert unable["INFERENCE_PRECISION_HINT"] == unable["KV_CACHE_PRECISION"] == "f32"


def test_bfloat16_keeps_its_cache_and_its_activations():
    options = device_options("bfloat16", device="CPU", capabilities=["BF16"])
    assert options["INFERENCE_PRECISION_HINT"] == options["KV_CACHE_PRECISION"] == "bf16"
    assert options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "0"


def test_cache_and_activations_are_quantized_on_purpose():
    options = compile_options(
        "int8", device="CPU", kv_cache="u8", dynamic_quantization_group_size=32
    )
    assert options["KV_CACHE_PRECISION"] == "u8"
    assert options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "32"


def test_npu_gets_what_its_plugin_knows():
    assert compile_options("float32", device="NPU")["INFERENCE_PRECISION_HINT"] == "f16"


@pytest.mark.parametrize("dtype", ["float8", torch.int64, "", None], ids=str)
def test_unknown_dtype_is_an_error_with_the_choices(dtype):
    with pytest.raises(OptionError, match="float32, bfloat16, float16, int8, int4") as error:
        precision_name(dtype)
    assert error.value.code == "unknown-dtype"

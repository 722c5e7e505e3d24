"""Dtypes of that library."""

import warnings

import numpy as np
import pytest
import torch

from npu_llm.compat.intel_npu_acceleration_library import dtypes
from npu_llm.compat.intel_npu_acceleration_library.backend import NNFactory
from npu_llm.compat.intel_npu_acceleration_library.dtypes import (
    bfloat16,
    dtype_of,
    float16,
    int4,
    int8,
)
from npu_llm.errors import OptionError


def test_a_dtype_equals_those_of_its_kind_and_no_others():
    assert float16 == torch.float16 == dtype_of("float16").torch_dtype
    assert float16 == np.float16
    assert float16 == np.dtype(np.float16)
    assert float16 not in (bfloat16, torch.bfloat16, np.int16, "fp16", None, str)
    assert int8 == np.int8
    assert int4 not in (int8, torch.int8, np.int8)
    assert {float16: 1}[dtype_of(np.float16)] == 1
    assert (int4.min, int4.max, int4.bits, int4.is_floating_point) == (-8, 7, 4, False)
    assert repr(bfloat16) == "bf16"


def test_bytes_stand_for_packed_numbers_of_4_bits():
    assert dtype_of(np.uint8) is int4


@pytest.mark.parametrize("wrong", [torch.complex64, "float17", None, str])
def test_another_dtype_is_refused(wrong):
    with pytest.raises(OptionError, match="`dtype` must be one of fp16, bf16") as error:
        dtype_of(wrong)
    assert error.value.code == "unknown-dtype"
    assert repr(wrong) in str(error.value)


def test_a_convention_is_told_of_once_at_the_line_that_met_it(monkeypatch):
    monkeypatch.setattr(dtypes, "_told", set())
    tensor = NNFactory().parameter((2, 3))
    with pytest.warns(dtypes.ConventionWarning, match=r"write tensor\[0:1, :\]") as heard:
        assert tensor[0, :].shape == [1, 3]
    assert heard[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tensor[-1, :].shape == [1, 3]

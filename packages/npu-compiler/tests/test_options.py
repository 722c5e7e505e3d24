"""Options of torch.compile: what is taken, and how errors read."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from npu_compiler.errors import OptionError
from npu_compiler.options import CompilerConfig, parse_options


def test_nothing_given_is_the_default():
    assert parse_options(None) == CompilerConfig()


def test_dtype_is_taken_as_dtype_or_name():
    assert parse_options({"dtype": torch.bfloat16}).dtype == "bfloat16"
    assert parse_options({"dtype": "float16"}).dtype == "float16"


@pytest.mark.parametrize(
    "options, code, text",
    [
        ({"dtyp": "float32"}, "unknown-option", "Did you mean 'dtype'?"),
        ({"zebra": 1}, "unknown-option", "got 'zebra'"),
        ({"dtype": "float8"}, "unknown-dtype", "got 'float8'"),
        ({"dtype": "int8"}, "unknown-dtype", "npu_compiler.quantize"),
        ({"dtype": 16}, "option-value", "got 16"),
        ({"strict": "yes"}, "option-value", "got 'yes'"),
        ({"freeze": 1}, "option-value", "got 1"),
        ({"fallback_ops": "aten.erf.default"}, "option-value", "list of names"),
    ],
    ids=str,
)
def test_wrong_option_is_a_readable_error(options, code, text):
    with pytest.raises(OptionError) as error:
        parse_options(options)
    assert error.value.code == code
    assert text in str(error.value)


def test_wrong_option_reaches_the_caller_of_compile():
    fast = torch.compile(torch.nn.Linear(2, 2), backend="npu", options={"dtyp": "float32"})
    with pytest.raises(BackendCompilerFailed, match=r"\[unknown-option\]") as error:
        fast(torch.randn(1, 2))
    assert isinstance(error.value.inner_exception, OptionError)


def test_mode_is_refused():
    fast = torch.compile(torch.nn.Linear(2, 2), backend="npu", mode="max-autotune")
    with pytest.raises(BackendCompilerFailed, match="mode"):
        fast(torch.randn(1, 2))

"""Options of torch.compile: what is taken, and how errors read."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from npu_compiler.errors import OptionError
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.options import (
    CompilerConfig,
    SparseAttention,
    backend_options,
    parse_options,
    resolve_config,
)


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
        ({"precision": "int8"}, "unknown-dtype", "compress weights"),
        ({"dtype": 16}, "option-value", "got 16"),
        ({"strict": "yes"}, "option-value", "got 'yes'"),
        ({"freeze": 1}, "option-value", "got 1"),
        ({"fallback_ops": "aten.erf.default"}, "option-value", "list of names"),
        ({"training": 1}, "option-value", "True, False or None; got 1"),
        ({"dynamic": "yes"}, "option-value", "got 'yes'"),
        ({"buckets": (0, 8)}, "option-value", "sizes above 0"),
        ({"buckets": "powers"}, "option-value", "powers of two"),
        ({"group_size": 48}, "option-value", "got 48"),
        ({"sparse_attention": 2048}, "option-value", "a SparseAttention; got 2048"),
        ({"cache_dir": 3}, "option-value", "a path; got 3"),
        ({"dtype": "int8", "training": True}, "option-conflict", "not trained"),
        ({"dtype": "int4", "freeze": False}, "option-conflict", "freeze False"),
        ({"dtype": "bfloat16", "precision": "float32"}, "option-conflict", "Give one of them"),
    ],
    ids=str,
)
def test_wrong_option_is_a_readable_error(options, code, text):
    with pytest.raises(OptionError) as error:
        parse_options(options)
    assert error.value.code == code
    assert text in str(error.value)


@pytest.mark.parametrize("name", ["dynamic", "use_to"])
def test_option_of_the_caller_is_no_option_of_a_backend(name):
    with pytest.raises(OptionError, match=rf"{name} is no option.*\[option-place\]"):
        backend_options({name: True})


def test_a_program_without_keys_refuses_to_choose_among_them():
    config = CompilerConfig(sparse_attention=SparseAttention(top_k=2048, after=4096))
    for asked in (
        lambda: resolve_config("npu_compiler.compile", config, {}),
        lambda: backend_options({"sparse_attention": config.sparse_attention}),
    ):
        with pytest.raises(OptionError, match=r"npu_llm\.load") as error:
            asked()
        assert error.value.code == "option-place"


def test_integer_dtype_speaks_of_weights_alone():
    config = CompilerConfig(dtype=torch.int8, precision=torch.bfloat16)
    assert (config.compression, config.computed_in) == ("int8", "bfloat16")
    assert CompilerConfig(dtype="int4").computed_in is None
    assert CompilerConfig(dtype="float16").compression is None


def test_cache_dir_is_a_path(tmp_path):
    assert CompilerConfig(cache_dir=str(tmp_path)).cache_dir == tmp_path


def test_wrong_option_reaches_the_caller_of_compile():
    fast = torch.compile(torch.nn.Linear(2, 2), backend="npu", options={"dtyp": "float32"})
    with pytest.raises(BackendCompilerFailed, match=r"\[unknown-option\]") as error:
        fast(torch.randn(1, 2))
    assert isinstance(error.value.inner_exception, OptionError)


def test_mode_is_refused():
    fast = torch.compile(torch.nn.Linear(2, 2), backend="npu", mode="max-autotune")
    with pytest.raises(BackendCompilerFailed, match="mode"):
        fast(torch.randn(1, 2))


def test_inference_is_captured_under_gradients_where_asked():
    layer = torch.nn.Linear(8, 4)
    with collecting() as records:
        fast = torch.compile(layer, backend="npu", options={"training": False})
        result = fast(torch.randn(2, 8))
    assert [record.kind for record in records] == ["inference"]
    assert not result.requires_grad


def test_compressed_weights_make_an_inference_graph():
    layer = torch.nn.Linear(128, 64)
    with collecting() as records:
        torch.compile(layer, backend="npu", options={"dtype": "int8"})(torch.randn(2, 128))
    (program,) = records[0].programs
    assert [weight.mode for weight in program.compression.weights] == ["int8"]

"""Options of torch.compile: accepted values, and errors."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.errors import OptionError
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.options import (
    CompilerConfig,
    SparseAttention,
    backend_options,
    parse_options,
    resolve_config,
)
from npu_compiler.torch_compile.backend import npu


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
        ({"training": 1}, "option-value", "True, False or None, got 1"),
        ({"dynamic": "yes"}, "option-value", "got 'yes'"),
        ({"buckets": (0, 8)}, "option-value", "sizes above 0"),
        ({"buckets": "powers"}, "option-value", "powers of two"),
        ({"group_size": 48}, "option-value", "got 48"),
        ({"sparse_attention": 2048}, "option-value", "a SparseAttention, got 2048"),
        ({"cache_dir": 3}, "option-value", "a path, got 3"),
        ({"dtype": "int8", "training": True}, "option-conflict", "`training` must be off"),
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
    with pytest.raises(OptionError, match=rf"`{name}` must be left out.*\[option-place\]"):
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
    with pytest.raises(OptionError, match=r"^compiling for npu.*\[unknown-option\]"):
        fast(torch.randn(1, 2))
    with pytest.raises(OptionError, match="dtyp"):
        fast(torch.randn(1, 2))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"fallback_ops": ["no.such.op"]}, "got 'no.such.op'"),
        ({"fallback_ops": ["aten.gelu.Default"]}, "Did you mean 'aten.gelu.default'?"),
        ({"fallback_ops": ["aten.gelu"]}, "Did you mean 'aten.gelu.default'?"),
        ({"disabled_passes": ["fuse_liner"]}, "Did you mean 'fuse_linear'?"),
        ({"enabled_passes": ["no_such_pass"]}, "got 'no_such_pass'"),
    ],
    ids=str,
)
def test_unknown_name_inside_an_option_is_an_error_with_the_nearest(options, text):
    with pytest.raises(OptionError) as error:
        parse_options(options)
    assert error.value.code == "option-value"
    assert text in str(error.value)


@pytest.mark.parametrize(
    "name", ["aten.add.Tensor", "prims.fma.default", "operator.getitem", "npu.swiglu.default"]
)
def test_names_of_operators_and_functions_are_taken(name):
    assert parse_options({"fallback_ops": [name]}).fallback_ops == (name,)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"keep_float32": ["0.geluu"]}, "The graph has"),
        ({"keep_float32": ["layers.*.norm"]}, "got 'layers.*.norm'"),
        ({"device_options": {"PERFORMANCE_HNT": "LATENCY"}}, "mean 'PERFORMANCE_HINT'?"),
        ({"device_options": {"PERFORMANCE_HINT": "LATE"}}, "LATE"),
    ],
    ids=str,
)
def test_unknown_module_or_property_is_an_error(options, text):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval()
    with torch.no_grad(), pytest.raises(OptionError) as error:
        torch.compile(model, backend="npu", options=options)(torch.randn(2, 4))
    assert error.value.code == "option-value"
    assert text in str(error.value)


def test_modules_on_both_sides_of_a_graph_break_are_found():
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.last = torch.nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.last(x)

    model = Broken().eval()
    x = torch.randn(2, 4)
    options = {"keep_float32": ["first", "last"]}
    with torch.no_grad():
        result = torch.compile(model, backend="npu", options=options)(x)
        torch.testing.assert_close(result, model(x))
        torch._dynamo.reset()
        options = {"keep_float32": ["first", "last", "lost"]}
        with pytest.warns(UserWarning, match="lost"):
            torch.compile(model, backend="npu", options=options)(x)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_modes_without_effect_are_taken(mode):
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="npu", mode=mode)(x), model(x))


def test_unknown_mode_is_an_error_with_the_nearest():
    with pytest.raises(OptionError, match="Did you mean 'max-autotune'"):
        npu(torch.fx.GraphModule({}, torch.fx.Graph()), [], mode="max-autotun")()


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

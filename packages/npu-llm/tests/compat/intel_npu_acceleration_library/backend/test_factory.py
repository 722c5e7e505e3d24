"""Graphs built with that library's methods."""

import numpy as np
import openvino as ov
import pytest
import torch
import torch.nn.functional as F

import npu_runtime
from npu_compiler.errors import GraphError
from npu_compiler.openvino_core import openvino_core
from npu_llm.compat.intel_npu_acceleration_library import dtypes
from npu_llm.compat.intel_npu_acceleration_library.backend import NNFactory, factory
from npu_llm.compat.intel_npu_acceleration_library.dtypes import bfloat16, float64
from npu_llm.compat.intel_npu_acceleration_library.quantization import compress_to_i4
from npu_llm.errors import OptionError


def close(found, expected):
    np.testing.assert_allclose(np.float32(found), np.float32(expected), atol=0.02, rtol=0.02)


@pytest.fixture
def layer():
    """A graph of x (3, 16) and a weight (4, 16) in float16."""
    graph = NNFactory()
    graph.linear(graph.parameter((3, 16)), 4, 16)
    return graph


X = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float16)
W = np.random.default_rng(1).integers(-8, 8, (4, 16)).astype(np.int8)
S = np.random.default_rng(2).random((4, 1)).astype(np.float16) / 8


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_products_over_integers_divide_by_the_root_of_the_inputs(told, bits, bias):
    told.clear()
    graph = NNFactory()
    kind = np.int8 if bits == 8 else np.uint8
    with pytest.warns(dtypes.ConventionWarning, match="square root of their inputs"):
        graph.linear(graph.parameter((3, 16)), 4, 16, bias, wt_dtype=kind)
    weight = W if bits == 8 else compress_to_i4(torch.from_numpy(W)).numpy()
    offset = np.arange(4, dtype=np.float16)
    found = graph.run(X, (weight, S * np.sqrt(16)), *([offset] if bias else []))
    close(found, X @ (W * S).T + bias * offset)


def test_a_layer_of_floats_takes_integers_with_their_scales(layer):
    close(layer.run(X, (W, S.astype(np.float32)), op_id="a"), X @ (W * S).T)
    packed = compress_to_i4(torch.from_numpy(W))
    close(layer.run(X, (packed.numpy(), S)), X @ (W * S).T)


def test_weights_are_kept_under_a_name_and_those_passed_count(layer):
    first, second = W.astype(np.float16), -W.astype(np.float16)
    close(layer.run(X, first, op_id="first"), X @ first.T)
    close(layer.run(X, second, op_id="second"), X @ second.T)
    close(layer.run(X, op_id="first"), X @ first.T)
    close(layer.run(X, second, op_id="first"), X @ second.T)
    assert layer.elapsed > 0


def test_inputs_that_were_set_serve_runs_without_them(layer):
    layer.set_input_tensor(W.astype(np.float16), 1)
    close(layer.run(X), X @ W.T)


def test_results_are_fresh(layer):
    first = layer.run(X, W.astype(np.float16))
    copy = first.copy()
    layer.run(2 * X, W.astype(np.float16))
    assert np.array_equal(first, copy)


def test_floats_are_cast_and_axes_of_one_element_do_not_matter(layer):
    weight = torch.randn(4, 16)
    found = layer(torch.from_numpy(X).double()[None], weight)
    assert found.dtype is torch.float16
    close(found, X @ weight.half().numpy().T)


@pytest.mark.parametrize(
    "x, said",
    [
        (np.ones((16, 3), np.float16), r"input 0 must be \(3, 16\), torch.float16, got \(16, 3\)"),
        (np.ones((3, 16), np.int32), r"got \(3, 16\), torch.int32"),
        ("rows", "must be an array or a tensor, got 'rows'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(layer, x, said):
    with pytest.raises(OptionError, match=said) as error:
        layer.run(x, W.astype(np.float16))
    assert error.value.code == "graph-array"


def test_bytes_of_another_count_are_refused():
    graph = NNFactory()
    graph.convert_to_fp16(graph.parameter((2, 4), np.uint8))
    with pytest.raises(OptionError, match="must be 4 bytes of packed 4-bit numbers"):
        graph.run(np.zeros((2, 4), np.uint8))


@pytest.mark.parametrize("given", [(), (np.ones((4, 16), np.float16),) * 2])
def test_too_few_or_too_many_inputs_are_refused(layer, given):
    with pytest.raises(GraphError) as error:
        layer.run(X, *given)
    assert error.value.code == "graph-input"


def test_named_calls_have_that_librarys_arguments():
    graph = NNFactory()
    image = graph.parameter((1, 2, 6, 6), np.float32)
    graph.concat(image, image, -1)
    graph.gelu(image)
    graph.avg_pooling(image, 2, None, 0, False, True, None, 2)
    graph.max_pooling(image, 3, 1, 1, False, 2)
    graph.convolution(
        image, np.ones((2, 1, 1, 3, 3), np.float32), np.ones((1, 2, 1, 1), np.float32), 1, 1, 1, 2
    )
    x = torch.randn(1, 2, 6, 6)
    expected = (
        torch.cat([x, x], -1), F.gelu(x, approximate="tanh"), F.avg_pool2d(x, 2),
        F.max_pool2d(x, 3, 1, 1),
        F.conv2d(x, torch.ones(2, 1, 3, 3), torch.ones(2), padding=1, groups=2),
    )  # fmt: skip
    for found, wanted in zip(graph(x), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


def test_constants_are_whole_or_float32_and_none_stays_none():
    graph = NNFactory()
    assert graph.constant(None) is None
    made = [graph.constant(value) for value in (3, 2.5, [1, 2], (1, 2.5))]
    assert [(x.shape, x.dtype.name) for x in made] == [
        ([1], "int64"), ([1], "fp32"), ([2], "int64"), ([2], "fp32"),
    ]  # fmt: skip
    assert graph.get_tensor_shape(made[2]) == (2,)
    assert graph.get_tensor_dtype(made[2]) is np.int64


@pytest.mark.parametrize("dtype", [float64, bfloat16])
def test_dtypes_that_numpy_or_an_npu_has_not_are_computed(dtype):
    graph = NNFactory()
    x = graph.parameter((2, 2), dtype)
    assert x.dtype == dtype
    x + 1
    result = graph.run(np.full((2, 2), 0.5))
    assert result.dtype == np.float32
    assert (result == 1.5).all()


def test_a_graph_is_saved_as_a_model_and_as_a_program(layer, tmp_path):
    path = str(tmp_path / "model.xml")
    layer.save(path)
    model = openvino_core().read_model(path)
    assert [list(port.shape) for port in model.inputs] == [[3, 16], [4, 16]]
    layer.saveCompiledModel(str(tmp_path / "model.blob"))
    assert (tmp_path / "model.blob").stat().st_size > 0
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    (found,) = compiled([X, W.astype(np.float16)]).values()
    close(found, X @ W.T)
    assert isinstance(model, ov.Model)


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        ({"profile": True}, "compat-profile", "`profile` must be False, got True"),
        ({"device": "XPU"}, "compat-device", "got XPU"),
    ],
)
def test_profiles_and_other_devices_are_refused(arguments, code, said):
    with pytest.raises(OptionError, match=said) as error:
        NNFactory(**arguments)
    assert error.value.code == code


def test_an_average_with_a_divisor_is_refused():
    graph = NNFactory()
    with pytest.raises(OptionError, match="`divisor_override` must be None") as error:
        graph.avg_pooling(graph.parameter((1, 1, 4, 4)), 2, divisor_override=3)
    assert error.value.code == "graph-call"


@pytest.mark.parametrize("shape", ["ab", 3, (2, "x"), None])
def test_what_are_no_sizes_is_refused(shape):
    with pytest.raises(OptionError, match="list of positive integers") as error:
        NNFactory().parameter(shape)
    assert error.value.code == "graph-array"


def test_constants_are_numbers():
    with pytest.raises(GraphError) as error:
        NNFactory().constant([object()])
    assert error.value.code == "graph-parameter"


def test_an_input_is_set_only_where_one_is(layer):
    for place in (-1, 2):
        with pytest.raises(OptionError, match="`idx` must be from 0 to 1"):
            layer.set_input_tensor(W, place)


def test_a_program_that_the_device_does_not_take_is_told(layer, tmp_path, monkeypatch):
    class Refusing:
        def compile_model(self, *_):
            raise RuntimeError("planted refusal")

    monkeypatch.setattr(factory, "openvino_core", Refusing)
    with pytest.raises(npu_runtime.ProgramError, match="planted refusal") as error:
        layer.saveCompiledModel(str(tmp_path / "model.blob"))
    assert error.value.code == "program-load"
    assert not (tmp_path / "model.blob").exists()


def test_graphs_are_saved_where_files_can_be(layer, tmp_path):
    (tmp_path / "file").touch()
    for save, name in (
        (layer.save, "model"),
        (layer.save, "file/model.xml"),
        (layer.saveCompiledModel, "file/model.blob"),
    ):
        with pytest.raises(OptionError, match="`path` must be") as error:
            save(str(tmp_path / name))
        assert error.value.code == "output-file"
    layer.saveCompiledModel(str(tmp_path / "new" / "model.blob"))
    assert (tmp_path / "new" / "model.blob").is_file()

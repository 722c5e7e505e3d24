"""Compressed models: error bounds, and that the plugin runs them without unpacking."""

from __future__ import annotations

import openvino as ov
import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import OptionError
from npu_compiler.lowering import lower
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs import compile_options, load_model
from npu_compiler.quantize import compress_weights

BOUNDS = {"int8": 0.02, "int4": 0.2}


def lowered(function, x, *weights):
    graph = make_fx(function, tracing_mode="symbolic")(x, *weights)
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    return lower(graph, constants=dict(zip(names[1:], weights, strict=True)))


def weight_types(model: ov.Model, precision: str) -> dict[str, str]:
    """Element type of the weights of each product in the model as the plugin runs it."""
    compiled = openvino_core().compile_model(model, "CPU", compile_options(precision, device="CPU"))
    found = {}
    for node in compiled.get_runtime_model().get_ordered_ops():
        kind = node.get_rt_info()["layerType"].astype(str)
        if kind in ("FullyConnected", "MatMul", "Gather"):
            port = 0 if kind == "Gather" else 1
            found[node.get_friendly_name()] = node.input(port).get_element_type().get_type_name()
    return found


@pytest.fixture
def loads(on_npu):
    """Loads a model with dynamic sizes; an NPU's program is for the sizes of its input."""

    def load(model: ov.Model, x: torch.Tensor, dtype: torch.dtype = torch.float32):
        if on_npu:
            model.reshape(list(x.shape))
        return load_model(model, name="test", options=compile_options(dtype))

    return load


def relative_error(result, expected) -> float:
    return float((result.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_compressed_product_stays_compressed_and_close(mode, symmetric, dtype, loads):
    weight = torch.randn(96, 128).to(dtype)
    x = torch.randn(5, 128).to(dtype)
    lowering = lowered(F.linear, x, weight)
    report = compress_weights(lowering.model, mode=mode, symmetric=symmetric)
    (compressed,) = report.weights
    assert compressed.shape == (96, 128)
    assert compressed.mode == mode
    assert compressed.group_size == (64 if mode == "int4" else None)
    wanted = {"int8": "i8" if symmetric else "u8", "int4": "i4" if symmetric else "u4"}[mode]
    precision = str(dtype).removeprefix("torch.")
    assert set(weight_types(lowering.model, precision).values()) == {wanted}
    result = loads(lowering.model, x, dtype).run([x])[0]
    assert result.dtype is dtype
    error = relative_error(result, F.linear(x, weight))
    assert 0 < error < BOUNDS[mode]
    assert compressed.relative_error < BOUNDS[mode]


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_weight_that_is_not_transposed_is_compressed_per_output_channel(mode, loads):
    weight = torch.randn(128, 96) * torch.logspace(-2, 2, 96)
    x = torch.randn(5, 128)
    lowering = lowered(lambda x, w: x @ w, x, weight)
    compress_weights(lowering.model, mode=mode)
    assert set(weight_types(lowering.model, "float32").values()) == {
        {"int8": "u8", "int4": "u4"}[mode]
    }
    result, expected = loads(lowering.model, x).run([x])[0], x @ weight
    # Channels of very different size: each is close only with a separate scale.
    per_channel = (result - expected).norm(dim=0) / expected.norm(dim=0)
    assert per_channel.max() < 1.5 * BOUNDS[mode]


def test_embedding_tied_to_the_head_is_int8_for_both(loads):
    table = torch.randn(256, 128)

    def tied(ids, table):
        return F.linear(F.embedding(ids, table), table)

    ids = torch.randint(0, 256, (2, 5))
    lowering = lowered(tied, ids, table)
    (compressed,) = compress_weights(lowering.model, mode="int4").weights
    assert compressed.mode == "int8"
    assert set(weight_types(lowering.model, "float32").values()) == {"u8"}
    result = loads(lowering.model, ids).run([ids])[0]
    assert relative_error(result, tied(ids, table)) < BOUNDS["int8"]


@pytest.mark.parametrize("columns, mode, group", [(96, "int4", 32), (100, "int8", None)])
def test_rows_that_the_group_does_not_divide(columns, mode, group):
    weight = torch.randn(64, columns)
    lowering = lowered(F.linear, torch.randn(5, columns), weight)
    (compressed,) = compress_weights(lowering.model, mode="int4", group_size=64).weights
    assert (compressed.mode, compressed.group_size) == (mode, group)


def test_a_whole_row_may_share_a_scale():
    weight, x = torch.randn(64, 100), torch.randn(5, 100)
    lowering = lowered(F.linear, x, weight)
    found = compress_weights(lowering.model, mode="int4", group_size=None, symmetric=True)
    (compressed,) = found.weights
    assert (compressed.mode, compressed.group_size) == ("int4", 100)
    assert compressed.size_after_bytes == 64 * 100 // 2 + 64 * 4


def test_small_weights_and_other_constants_are_left_alone():
    weight, offset = torch.randn(8, 16), torch.randn(8)
    lowering = lowered(
        lambda x, weight, b: F.linear(x, weight, b), torch.randn(5, 16), weight, offset
    )
    report = compress_weights(lowering.model, mode="int8")
    assert report.weights == ()
    assert list(report.skipped) == ["weight_1"]
    assert "128 elements are less than 4096" in report.skipped["weight_1"]


def test_report_sums_sizes():
    lowering = lowered(F.linear, torch.randn(5, 128), torch.randn(96, 128))
    report = compress_weights(lowering.model, mode="int4", group_size=32)
    assert report.size_before_bytes == 96 * 128 * 4
    assert report.size_after_bytes == 96 * 128 // 2 + 96 * 4 * 4 + 96 * 4 // 2
    assert "1 weights compressed" in str(report)


def test_weights_memory_is_not_needed_afterwards(loads):
    weight = torch.randn(96, 128)
    x = torch.ones(1, 128)
    expected = F.linear(x, weight)
    lowering = lowered(F.linear, torch.randn(5, 128), weight)
    compress_weights(lowering.model, mode="int8")
    weight.zero_()
    assert relative_error(loads(lowering.model, x).run([x])[0], expected) < BOUNDS["int8"]


@pytest.mark.parametrize(
    "arguments, code",
    [({"mode": "int3"}, "quantize-mode"), ({"mode": "int4", "group_size": 48}, "quantize-group")],
    ids=str,
)
def test_unknown_mode_or_group_is_an_error(arguments, code):
    lowering = lowered(F.linear, torch.randn(5, 128), torch.randn(96, 128))
    with pytest.raises(OptionError) as error:
        compress_weights(lowering.model, **arguments)
    assert error.value.code == code


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_weights_that_lie_elsewhere_are_read_when_they_are_compressed(mode):
    weight, x = torch.randn(96, 128), torch.randn(5, 128)
    stand_in = torch.zeros_like(weight)
    asked = []

    def read(tensor):
        asked.append(tensor.data_ptr())
        return weight

    elsewhere = lowered(F.linear, x, stand_in)
    report = compress_weights(elsewhere.model, mode=mode, read=read)
    plain = compress_weights(lowered(F.linear, x, weight).model, mode=mode)
    assert set(asked) == {stand_in.data_ptr()}
    assert report.weights[0].relative_error == plain.weights[0].relative_error > 0

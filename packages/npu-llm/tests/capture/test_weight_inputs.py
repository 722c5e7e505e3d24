import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.quantize import compress_weights
from npu_llm.capture.weight_inputs import move_weights

RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 3, 64)).astype(np.float32)


def constant(*shape: int):
    return ops.constant(RNG.standard_normal(shape).astype(np.float32))


def named(shape, element, name):
    parameter = ops.parameter(shape, element)
    parameter.set_friendly_name(name)
    return parameter


def product_model(*, mode="int8", group_size=None, symmetric=True) -> ov.Model:
    x = named([1, 3, 64], ov.Type.f32, "x")
    weight = constant(128, 64)
    model = ov.Model([ops.matmul(x, weight, False, True)], [x])
    compress_weights(model, mode=mode, group_size=group_size, symmetric=symmetric)
    return model


def run(model, *arrays, core):
    options = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    compiled = core.compile_model(model, "CPU", options)
    return next(iter(compiled(list(arrays)).values()))


def moved_from(model):
    return move_weights(model, dtype=torch.float32, read=lambda tensor: tensor)


def packed(port: ov.Output, tensor: torch.Tensor):
    """An input's tensor, two numbers of 4 bits in a byte."""
    return ov.Tensor(tensor.numpy(), port.get_shape(), port.get_element_type())


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_products_give_what_constant_weights_gave(mode, core):
    model = product_model(mode=mode)
    expected = run(model, X, core=core)
    moved = moved_from(model)
    assert [node.get_friendly_name() for node in model.get_parameters()] == ["x", "weight.0"]
    weight = moved.tensors["weight.0"]
    assert tuple(weight.shape) == {"int8": (128, 64), "int4": (128, 32)}[mode]
    got = run(model, X, packed(model.input(1), weight), core=core)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", [{"mode": "int4", "group_size": 32}, {"symmetric": False}])
def test_groups_and_zero_points_stay_constants(how):
    model = product_model(**how)
    assert not moved_from(model).tensors
    assert len(model.get_parameters()) == 1


def test_a_head_and_its_embedding_share_one_tensor(core):
    tokens = named([1, 3], ov.Type.i64, "input_ids")
    table = constant(128, 64)
    rows = ops.gather(table, tokens, ops.constant(0))
    model = ov.Model([ops.matmul(rows, table, False, True)], [tokens])
    compress_weights(model, mode="int8", symmetric=True)
    ids = np.array([[5, 0, 127]])
    expected = run(model, ids, core=core)
    moved = moved_from(model)
    table = moved.tables["embedding.0"]
    assert (table.rows, table.size) == ("weight.0", 64)
    assert set(moved.tensors) == {"weight.0", "weight.0.scale"}
    weight = moved.tensors["weight.0"]
    looked_up = weight[ids[0]].float() * moved.tensors["weight.0.scale"][ids[0], None]
    model.reshape({"embedding.0": [1, 3, 64]})
    got = run(model, ids, weight.numpy(), looked_up[None].numpy(), core=core)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def test_embedding_of_floats_is_read_from_the_stand_in():
    tokens = named([1, 3], ov.Type.i64, "input_ids")
    model = ov.Model([ops.gather(constant(128, 64), tokens, ops.constant(0))], [tokens])
    stored = torch.ones(128, 64, dtype=torch.bfloat16)
    moved = move_weights(model, dtype=torch.float16, read=lambda _: stored)
    assert moved.tensors["embedding.0.rows"] is stored
    assert model.input("embedding.0").get_element_type() == ov.Type.f16

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

from npu_llm.kv_cache.host_inputs import HostInputs, split_host_inputs

RNG = np.random.default_rng(0)
TOKENS, SLOTS = 3, 5
VALUES = {
    "position_ids": torch.tensor([[4096, 4097, 4098]]),
    "attention_mask": torch.tensor([[0, 1, 1, 1, 1]]),
    "key_positions": torch.tensor([4095, 4099, 4096, 4097, 4098]),
}


def named(shape, element, name):
    parameter = ops.parameter(shape, element)
    parameter.set_friendly_name(name)
    parameter.output(0).set_names({name})
    return parameter


def attention_model() -> ov.Model:
    """Two layers with a causal mask, sines and a bool mask, each layer with separate calls."""
    inputs = {name: named(list(one.shape), ov.Type.i64, name) for name, one in VALUES.items()}
    scores = named([1, 1, TOKENS, SLOTS], ov.Type.f32, "scores")
    queries = ops.unsqueeze(inputs["position_ids"], ops.constant(2))
    hidden = ops.greater(ops.unsqueeze(inputs["key_positions"], ops.constant([0, 1])), queries)
    empty = ops.equal(inputs["attention_mask"], ops.constant(0))
    angles = ops.sin(ops.convert(queries, ov.Type.f32))
    size = ops.gather(ops.shape_of(scores), ops.constant(3), ops.constant(0))
    result = scores
    for _ in range(2):
        mask = ops.unsqueeze(ops.convert(hidden, ov.Type.f32), ops.constant(1))
        result = ops.add(result, ops.multiply(mask, np.float32(-1000)))
        result = ops.multiply(result, ops.unsqueeze(angles, ops.constant(1)))
        result = ops.select(empty, np.float32(-5), result)
        result = ops.divide(result, ops.convert(size, ov.Type.f32))
    return ov.Model([result], [scores, *inputs.values()])


def run(model, core, values):
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled({port: values[port.get_any_name()] for port in compiled.inputs})[0]


@pytest.mark.parametrize("dtype", [ov.Type.f32, ov.Type.f16])
def test_the_host_computes_masks_and_angles_once(dtype, core, tmp_path):
    model = attention_model()
    scores = RNG.standard_normal((1, 1, TOKENS, SLOTS)).astype(np.float32)
    values = {"scores": scores, **{name: one.numpy() for name, one in VALUES.items()}}
    expected = run(model, core, values)
    host = split_host_inputs(model, dtype)
    assert host is not None
    names = [one.get_friendly_name() for one in model.get_parameters()]
    assert names == ["scores", "host.0", "host.1", "host.2"]
    ov.save_model(host, tmp_path / "host.xml", compress_to_fp16=False)
    added = HostInputs(tmp_path / "host.xml")(VALUES)
    kinds = [one.get_element_type() for one in model.get_parameters()[1:]]
    assert kinds == [dtype] * 3
    got = run(model, core, {"scores": scores, **{n: t.numpy() for n, t in added.items()}})
    exact = 1e-6 if dtype == ov.Type.f32 else 1e-3
    np.testing.assert_allclose(got, expected, rtol=exact, atol=exact)


def test_an_input_that_a_token_s_calls_read_stays(core):
    tokens = named([1, 4], ov.Type.f32, "x")
    kept = named([1], ov.Type.i64, "logits_to_keep")
    model = ov.Model([ops.gather(tokens, kept, ops.constant(1))], [tokens, kept])
    assert split_host_inputs(model, ov.Type.f16) is None
    assert len(model.get_parameters()) == 2


def test_a_table_of_positions_moves_to_the_host(core, tmp_path):
    x, positions = named([1, 3, 8], ov.Type.f32, "x"), named([1, 3], ov.Type.i64, "position_ids")
    table = RNG.standard_normal((5000, 8)).astype(np.float32)
    rows = ops.gather(ops.constant(table), positions, ops.constant(0))
    model = ov.Model([ops.add(x, rows)], [x, positions])
    host = split_host_inputs(model, ov.Type.f32)
    ov.save_model(host, tmp_path / "host.xml", compress_to_fp16=False)
    (got,) = HostInputs(tmp_path / "host.xml")(VALUES).values()
    np.testing.assert_array_equal(got.numpy(), table[[[4096, 4097, 4098]]])
    assert {node.get_type_name() for node in model.get_ops()} == {"Parameter", "Add", "Result"}

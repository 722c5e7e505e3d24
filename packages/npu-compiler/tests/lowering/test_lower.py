"""lower(): names, constants, errors, inputs and outputs."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import LoweringError
from npu_compiler.lowering import lower
from npu_compiler.programs import compile_options, load_model


def traced(function, *inputs, mode="fake"):
    return make_fx(function, tracing_mode=mode)(*inputs)


def run(lowered, *inputs):
    program = load_model(lowered.model, name="test", options=compile_options("float32"))
    return program.run(list(inputs))


def test_nodes_keep_the_graphs_names():
    model = lower(traced(lambda x, w: torch.addmm(x, x, w), *[torch.randn(4, 4)] * 2)).model
    names = {node.get_friendly_name() for node in model.get_ordered_ops()}
    assert {"addmm/aten.addmm.default", "addmm/aten.addmm.default/MatMul", "x_1", "w_1"} <= names


def test_constant_shares_the_weights_memory():
    weight = torch.randn(4, 4)
    lowered = lower(traced(lambda x, w: x @ w, weight, weight), constants={"w_1": weight})
    constant = next(n for n in lowered.model.get_ordered_ops() if n.get_friendly_name() == "w_1")
    assert constant.get_tensor_view().data.__array_interface__["data"][0] == weight.data_ptr()
    assert lowered.input_names == ("x_1",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_constant_outlives_the_tensor_it_came_from(dtype):
    values = torch.arange(64).reshape(8, 8).t()
    expected = values.to(dtype).float()
    graph = traced(lambda x, w: x + w, torch.zeros(8, 8), values.to(dtype))
    lowered = lower(graph, constants={"w_1": values.to(dtype)})
    gc.collect()
    np.zeros(4096)
    assert torch.equal(run(lowered, torch.zeros(8, 8))[0], expected)


def test_constants_on_npu_are_read_in_place():
    weight = torch.randn(4, 4, device="npu", dtype=torch.bfloat16)
    graph = traced(lambda x, w: x @ w, torch.randn(4, 4).bfloat16(), weight.cpu())
    lowered = lower(graph, constants={"w_1": weight})
    constant = next(n for n in lowered.model.get_ordered_ops() if n.get_friendly_name() == "w_1")
    data = constant.get_tensor_view().data
    assert data.__array_interface__["data"][0] == weight.data_ptr()


def test_constant_of_an_unknown_name_is_an_error():
    graph = traced(lambda x: x + 1, torch.randn(2))
    with pytest.raises(LoweringError, match=r"'weight'.*x_1") as error:
        lower(graph, constants={"weight": torch.randn(2)})
    assert error.value.code == "constant-name"


def test_unknown_op_names_node_and_place():
    graph = traced(lambda x: torch.linalg.qr(x)[0], torch.randn(4, 4))
    with pytest.raises(LoweringError, match=r"aten\.linalg_qr\.default") as error:
        lower(graph)
    assert error.value.code == "no-converter"
    assert error.value.node_name == "linalg_qr"
    assert "[no-converter]" in str(error.value)


def test_refusal_carries_the_reason():
    graph = traced(lambda x: x.roll(1), torch.randn(4, 4))
    with pytest.raises(LoweringError, match="roll over the flattened tensor") as error:
        lower(graph)
    assert error.value.code == "cannot-lower"
    assert error.value.reason == "a roll over the flattened tensor"


def test_dead_calls_are_not_lowered():
    graph = traced(lambda x: (torch.linalg.qr(x), x + 1)[1], torch.randn(4, 4))
    assert lower(graph).node_count == 1


def test_none_and_numbers_among_outputs_have_no_port():
    graph = traced(lambda x: (x + 1, None, x * 2), torch.randn(4))
    assert lower(graph).outputs == (0, None, 1)


def test_input_returned_as_it_is_is_written():
    x = torch.randn(3, 4)
    for value in (x, x > 0, torch.arange(5)):
        lowered = lower(traced(lambda x: (x, x.logical_not()), value))
        assert torch.equal(run(lowered, value)[0], value)


def test_one_value_returned_twice_has_two_buffers():
    lowered = lower(traced(lambda x: [x + 1] * 2, torch.randn(4)))
    first, second = run(lowered, torch.ones(4))
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


def test_permuted_input_and_output_are_bound_as_their_bytes_lie():
    x = torch.randn(2, 3, 4, 5)
    graph = traced(lambda x: x * 2, x)
    lowered = lower(graph, input_orders={"x_1": (0, 2, 3, 1)}, output_orders={0: (0, 3, 1, 2)})
    result = run(lowered, x.permute(0, 2, 3, 1).contiguous())[0]
    assert torch.equal(result, (x * 2).permute(0, 3, 1, 2))


def test_symbolic_placeholder_becomes_a_rank_0_input():
    graph = make_fx(lambda x, n: x * n, tracing_mode="symbolic")(torch.randn(3), 4)
    lowered = lower(graph, input_shapes={"x_1": [5]})
    ports = {p.get_friendly_name(): p for p in lowered.model.get_parameters()}
    assert str(ports["n_1"].get_element_type()) == "<Type: 'int64_t'>"
    by_name = {"x_1": torch.ones(5), "n_1": torch.tensor(7)}
    result = run(lowered, *[by_name[name] for name in lowered.input_names])[0]
    assert torch.equal(result, torch.full((5,), 7.0))


def test_shape_given_by_the_caller_wins():
    graph = traced(lambda x: x.relu(), torch.randn(3, 4))
    model = lower(graph, input_shapes={"x_1": [-1, 4]}).model
    assert str(model.inputs[0].get_partial_shape()) == "[?,4]"


def test_values_lead_to_the_models_outputs():
    lowered = lower(traced(lambda x: (x * 2).relu(), torch.randn(3)))
    assert lowered.values["mul"].get_node().get_type_name() == "Multiply"

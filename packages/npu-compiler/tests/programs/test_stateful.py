import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.errors import OptionError
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs.stateful import StateVariable, make_stateful


def growing_model(sizes=(-1, 2, -1, 3), dtype=ov.Type.f32):
    """sum over the past values, and the longer list of past values."""
    new = ops.parameter(ov.PartialShape([-1, 2, -1, 3]), ov.Type.f32, name="new")
    past = ops.parameter(ov.PartialShape(list(sizes)), dtype, name="past")
    joined = ops.concat([ops.convert(past, ov.Type.f32), new], 2)
    total = ops.reduce_sum(joined, ops.constant([1, 2, 3], ov.Type.i64))
    return ov.Model([ops.result(total), ops.result(joined)], [new, past], "growing")


def compiled(model):
    hint = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    return openvino_core().compile_model(model, "CPU", hint).create_infer_request()


PAST = [StateVariable("past.0", 1, 1)]


def test_state_grows_and_starts_with_length_zero():
    request = compiled(make_stateful(growing_model(), PAST))
    order = torch.arange(1, dtype=torch.int32)
    chunks = [torch.randn(1, 2, length, 3) for length in (3, 1, 2)]
    for count in range(1, 4):
        (total,) = request.infer([chunks[count - 1].numpy(), order.numpy()]).to_tuple()
        expected = torch.cat(chunks[:count], 2).sum((1, 2, 3))
        torch.testing.assert_close(torch.from_numpy(total), expected)


def test_a_reset_empties_a_variable_that_no_other_resembles():
    request = compiled(make_stateful(growing_model(), PAST))
    order = torch.arange(1, dtype=torch.int32)
    for length in (3, 1):
        new = torch.randn(1, 2, length, 3)
        (total,) = request.infer([new.numpy(), order.numpy()]).to_tuple()
        torch.testing.assert_close(torch.from_numpy(total), new.sum((1, 2, 3)))
        request.reset_state()


def test_rows_are_reordered_before_each_run():
    request = compiled(make_stateful(growing_model(), PAST))
    first = torch.randn(3, 2, 4, 3)
    request.infer([first.numpy(), torch.arange(3, dtype=torch.int32).numpy()])
    order = torch.tensor([2, 2, 0], dtype=torch.int32)
    second = torch.randn(3, 2, 1, 3)
    (total,) = request.infer([second.numpy(), order.numpy()]).to_tuple()
    expected = torch.cat([first[order.long()], second], 2).sum((1, 2, 3))
    torch.testing.assert_close(torch.from_numpy(total), expected)


def test_inputs_and_outputs_that_carry_state_are_gone():
    model = make_stateful(growing_model(), PAST, reorder_input="rows")
    assert [item.get_friendly_name() for item in model.get_parameters()] == ["new", "rows"]
    assert len(model.get_results()) == 1


@pytest.mark.parametrize(
    "sizes, dtype, quoted",
    [((-1, -1, -1, 3), ov.Type.f32, "past.0"), ((-1, 2, -1, 3), ov.Type.f16, "f16")],
)
def test_state_of_unknown_shape_or_changing_type_is_an_error(sizes, dtype, quoted):
    with pytest.raises(OptionError, match=quoted) as caught:
        make_stateful(growing_model(sizes, dtype), PAST)
    assert caught.value.code == "state-shape"

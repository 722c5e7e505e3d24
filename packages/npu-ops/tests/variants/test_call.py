import pytest
import torch

from npu_ops.errors import OperatorInputError
from npu_ops.variants import OpCall, TensorSpec
from npu_ops.variants.call import parse_call


def test_a_call_reads_back_what_it_prints() -> None:
    call = OpCall(
        "aten::convolution",
        (
            TensorSpec(torch.float32, (1, 8, 9, 9), (0, 2, 3, 1)),
            TensorSpec(torch.float32, (4, 8, 3, 3)),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
        ),
    )
    name, *texts = str(call).split(" ")
    assert name == "aten.convolution"
    assert texts[:2] == ["1x8x9x9xf32@0.2.3.1", "4x8x3x3xf32"]
    assert parse_call(name, texts) == call


def test_one_tensor_stands_for_all() -> None:
    call = parse_call("aten.mm", ["4x4xbf16"])
    assert call.tensors == (TensorSpec(torch.bfloat16, (4, 4)),) * 2


def test_an_optional_tensor_is_taken_when_there_are_enough() -> None:
    call = parse_call("aten.native_layer_norm", ["2x4xf32", "4xf32", "4xf32", *_NORM])
    assert [spec.shape for spec in call.tensors] == [(2, 4), (4,), (4,)]
    assert len(parse_call("aten.native_layer_norm", ["2x4xf32", *_NORM]).tensors) == 1


_NORM = ["normalized_shape=[4]", "eps=1e-5"]


@pytest.mark.parametrize("order", [(), (1, 0), (1, 2, 0)])
def test_strides_follow_the_order_of_the_axes(order: tuple[int, ...]) -> None:
    shape = (2, 3) if len(order) < 3 else (2, 3, 4)
    spec = TensorSpec(torch.float32, shape, order)
    tensor = torch.empty_strided(spec.shape, spec.strides)
    assert tensor.permute(order or tuple(range(tensor.dim()))).is_contiguous()


@pytest.mark.parametrize(
    "op, texts, code, quoted",
    [
        ("aten.nope", ["3xf32"], "unknown-op", "'aten.nope'"),
        ("aten.mm.outt", ["3xf32"], "unknown-op", "default, out"),
        ("aten.mm", ["3x"], "op-arguments", "'3x'"),
        ("aten.mm", ["3x3xf31"], "op-arguments", "'3x3xf31'"),
        ("aten.mm", ["3x3xf32@0.0"], "op-arguments", "'3x3xf32@0.0'"),
        ("aten.mm", [], "op-arguments", "`self` must be given"),
        ("aten.mm", ["3x3xf32"] * 3, "op-arguments", "1 more"),
        ("aten._softmax", ["3xf32"], "op-arguments", "dim=VALUE"),
        ("aten._softmax", ["3xf32", "axis=1"], "op-arguments", "'axis'"),
        ("aten._softmax", ["3xf32", "dim=[", "half_to_float=false"], "op-arguments", "'['"),
    ],
)
def test_what_cannot_be_read_is_an_error(op: str, texts: list[str], code: str, quoted: str) -> None:
    with pytest.raises(OperatorInputError) as caught:
        parse_call(op, texts)
    assert caught.value.code == code
    assert quoted in str(caught.value)


def test_arguments_that_torch_refuses_are_an_error() -> None:
    with pytest.raises(OperatorInputError, match="an error of torch") as caught:
        parse_call("aten.mm", ["3x4xf32", "5x6xf32"]).results()
    assert caught.value.code == "op-arguments"

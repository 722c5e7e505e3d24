"""Refusals of the ops: the class, the code, the value, and the same words from the fake."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from npu_ops.fused.quantized_linear import pack_int4, unpack_int4


def f(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def i8(*shape):
    return f(*shape, dtype=torch.int8)


def u8(*shape):
    return f(*shape, dtype=torch.uint8)


Q, KV = (2, 4, 3, 8), (2, 2, 3, 8)
CACHE = (2, 2, 6, 8)
STATISTICS = (f(6), f(6))

REFUSED = [
    ("rms_norm", (f(4, 16, 1024), f(768)), {}, "op-shape",
     ("`weight` must match the last dim of `x`, got weight (768,), x (4, 16, 1024). Pass a weight "
     "of length 1024.")),
    ("rms_norm", (f(), f(1)), {}, "op-shape", "got ()"),
    ("rms_norm", (i8(4), f(4)), {}, "op-dtype", "torch.int8"),
    ("rms_norm", (f(4), i8(4)), {}, "op-dtype", "`weight` must be float32"),
    ("swiglu", (f(2, 3), f(3)), {}, "op-shape", "got gate (2, 3), up (3,)"),
    ("swiglu", (f(2), f(2, dtype=torch.bfloat16)), {}, "op-dtype", "up torch.bfloat16"),
    ("rotary_embedding", (f(3, 8), f(3, 4), f(3, 4)), {}, "op-shape", "got x (3, 8)"),
    ("rotary_embedding", (f(1, 2, 3, 8), f(4, 4), f(4, 4)), {}, "op-shape", "got cos (4, 4)"),
    ("rotary_embedding", (f(1, 2, 3, 8), f(3, 5), f(3, 5)), {}, "op-shape", "got cos (3, 5)"),
    ("rotary_embedding", (f(2, 2, 3, 8), f(3, 3, 4), f(3, 3, 4)), {}, "op-shape", "(3, 3, 4)"),
    ("rotary_embedding", (f(1, 2, 3, 8), f(3, 4), f(3, 3)), {}, "op-shape", "sin (3, 3)"),
    ("linear_relu", (f(2, 5), f(3, 4)), {}, "op-shape", "got x (2, 5), weight (3, 4)"),
    ("linear_relu", (f(), f(3, 4)), {}, "op-shape", "got x ()"),
    ("linear_relu", (f(2, 4), f(4)), {}, "op-shape", "got weight (4,)"),
    ("linear_relu", (f(2, 4), f(3, 4), f(4)), {}, "op-shape", "got bias (4,), 3 outputs"),
    ("linear_relu", (f(2, 4), f(3, 4, dtype=torch.float64)), {}, "op-dtype", "torch.float64"),
    ("linear_gelu", (f(2, 4), f(3, 4)), {"approximate": "erf"}, "op-value", "got 'erf'"),
    ("addmm_relu", (f(2), f(3, 4), f(5, 2)), {}, "op-shape", "got mat1 (3, 4), mat2 (5, 2)"),
    ("addmm_relu", (f(3), f(3, 4), f(4, 2)), {}, "op-shape", "got input (3,), product (3, 2)"),
    ("addmm_relu", (f(2), f(4), f(4, 2)), {}, "op-shape", "got mat1 (4,)"),
    ("conv_bn_relu", (f(2, 4, 9), f(6, 4, 3, 3), None, *STATISTICS), {}, "op-shape",
     "got x (2, 4, 9), weight (6, 4, 3, 3)"),
    ("conv_bn_relu", (f(2, 4, 9), f(6, 3, 3), None, *STATISTICS), {}, "op-shape", "(6, 3, 3)"),
    ("conv_bn_relu", (f(2, 4, 9), f(6, 4, 3), None, f(5), f(6)), {}, "op-shape",
     "got running_mean (5,), 6 channels"),
    ("conv_bn_relu", (f(2, 4, 9), f(6, 4, 11), None, *STATISTICS), {}, "op-shape", "(6, 4, 11)"),
    ("conv_bn_relu", (f(2, 4, 9), f(6, 4, 3), None, *STATISTICS), {"stride": [0]}, "op-value",
     "`stride` must be one number or 1, each at least 1, got [0]"),
    ("conv_bn_relu", (f(2, 4, 9), f(6, 4, 3), None, *STATISTICS), {"padding": [-1]}, "op-value",
     "got [-1]"),
    ("conv_bn_relu", (f(2, 4, 9), f(6, 4, 3), None, *STATISTICS), {"groups": 0}, "op-value",
     "got 0"),
    ("fused_attention", (f(*Q), f(2, 3, 3, 8), f(2, 3, 3, 8)), {}, "op-shape", "(2, 3, 3, 8)"),
    ("fused_attention", (f(*Q), f(*KV), f(2, 2, 4, 8)), {}, "op-shape", "value (2, 2, 4, 8)"),
    ("fused_attention", (f(*Q), f(1, 2, 3, 8), f(1, 2, 3, 8)), {}, "op-shape", "(1, 2, 3, 8)"),
    ("fused_attention", (f(*Q), f(2, 2, 2, 8), f(2, 2, 2, 8)), {"is_causal": True}, "op-shape",
     "3 queries, 2 keys"),
    ("fused_attention", (f(*Q), f(*KV), f(*KV)), {"window": 2}, "op-value", "window 2"),
    ("fused_attention", (f(*Q), f(*KV), f(*KV)), {"window": 0, "is_causal": True}, "op-value",
     "got 0"),
    ("fused_attention", (f(*Q), f(*KV), f(*KV), f(*CACHE), f(*CACHE), 4), {}, "op-value",
     "got position 4, 3 tokens, capacity 6"),
    ("fused_attention", (f(*Q), f(*KV), f(*KV), f(*CACHE), f(*CACHE), -1), {}, "op-value",
     "got position -1"),
    ("fused_attention", (f(*Q), f(*KV), f(*KV), f(2, 4, 6, 8), f(2, 4, 6, 8), 0), {}, "op-shape",
     "got key_cache (2, 4, 6, 8)"),
    ("quantized_linear", (f(2, 8), i8(3, 8), f(3, 1)), {"bits": 2}, "op-value", "got 2"),
    ("quantized_linear", (f(2, 8), f(3, 8), f(3, 1)), {}, "op-dtype", "torch.float32"),
    ("quantized_linear", (f(2, 8), i8(3, 4), f(3, 1)), {"bits": 4}, "op-dtype", "torch.int8"),
    ("quantized_linear", (f(2, 8), i8(3, 4), f(3, 1)), {}, "op-shape", "x (2, 8), weight (3, 4)"),
    ("quantized_linear", (f(2, 8), i8(3, 8), f(3, 3)), {}, "op-shape", "scale (3, 3)"),
    ("quantized_linear", (f(2, 6), u8(3, 3), f(3, 2)), {"bits": 4}, "op-shape", "scale (3, 2)"),
    ("quantized_linear", (f(2, 8), i8(3, 8), f(3, 2), i8(3, 1)), {}, "op-shape", "got (3, 1)"),
    ("quantized_linear", (f(2, 8), i8(3, 8), f(3, 1), u8(3, 1)), {}, "op-dtype", "torch.uint8"),
    ("dynamic_quantize", (f(2, 8),), {"group_size": 3}, "op-value", "group_size 3, x (2, 8)"),
    ("dynamic_quantize", (f(),), {}, "op-shape", "got ()"),
    ("dynamic_quantize", (i8(2, 8),), {}, "op-dtype", "torch.int8"),
]  # fmt: skip


def refusal(op, arguments, options):
    with pytest.raises(ValueError) as caught:
        getattr(torch.ops.npu, op)(*arguments, **options)
    return str(caught.value).splitlines()[0]


def moved(arguments, where):
    return [where(part) if isinstance(part, torch.Tensor) else part for part in arguments]


@pytest.mark.parametrize("op, arguments, options, code, words", REFUSED)
def test_refusal_has_class_code_and_value_everywhere(op, arguments, options, code, words):
    text = refusal(op, arguments, options)
    assert text.startswith(f"npu.{op}: ")
    assert text.endswith(f"[{code}]")
    assert words in text
    assert refusal(op, moved(arguments, lambda part: part.to("npu")), options) == text
    assert refusal(op, moved(arguments, lambda part: part.to("meta")), options) == text


def test_fake_refuses_in_the_kernels_words():
    with FakeTensorMode() as mode:
        x, weight = mode.from_tensor(f(2, 5)), mode.from_tensor(f(3, 4))
        said = refusal("linear_relu", (x, weight), {})
    assert said == refusal("linear_relu", (f(2, 5), f(3, 4)), {})


def test_tensors_of_two_devices_are_refused():
    with pytest.raises(RuntimeError, match=r"\[device-mix\]"):
        torch.ops.npu.rms_norm(f(2, 8).to("npu"), f(8))


def test_values_that_no_nibble_holds_are_refused():
    with pytest.raises(ValueError, match=r"got 3 to 16\. .*\[op-value\]"):
        pack_int4(torch.tensor([[3, 16]]))


def test_odd_rows_cannot_be_packed():
    with pytest.raises(ValueError, match=r"got values \(2, 3\)\. .*\[op-shape\]"):
        pack_int4(torch.zeros(2, 3))


def test_packing_keeps_the_even_element_low():
    values = torch.tensor([[1, 2, 15, 0]])
    assert pack_int4(values).tolist() == [[0x21, 0x0F]]
    assert torch.equal(unpack_int4(pack_int4(values)), values.to(torch.uint8))

from dataclasses import replace

import pytest
import torch

from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.weights import interleave, pack, pack_integers, unpack

from .conftest import rounded


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(1, 1), (16, 64), (17, 3), (48, 100)])
def test_packed_floats_are_the_matrix(kind, shape, generator):
    weight = torch.randn(shape, generator=generator)
    packed = pack(weight, kind)
    assert torch.equal(unpack(packed), weight.to(getattr(torch, kind)).float())
    assert packed.data.numel() % (16 * shape[1]) == 0


@pytest.mark.parametrize("bits, groups, size", [(8, 1, 100), (4, 3, 32), (4, 2, 64), (4, 1, 128)])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_packed_integers_are_the_matrix(bits, groups, size, has_zeros, generator):
    values = torch.randint(0, 2**bits, (35, groups, size), dtype=torch.uint8, generator=generator)
    scales = torch.rand(35, groups, generator=generator).half().float()
    zeros = torch.randint(0, 2**bits, (35, groups), dtype=torch.uint8, generator=generator)
    packed = pack_integers(values, scales, zeros if has_zeros else None, bits=bits)
    zero = zeros[..., None].float() if has_zeros else 2.0 ** (bits - 1)
    expected = ((values.float() - zero) * scales[..., None]).flatten(1)
    assert torch.equal(unpack(packed), expected)
    assert packed.nbytes < 35 * groups * size * 4


def test_gate_and_up_alternate_in_blocks():
    gate, up = torch.zeros(32, 1), torch.ones(32, 1)
    assert interleave(gate, up)[:, 0].tolist() == ([0.0] * 16 + [1.0] * 16) * 2


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int8", "int4"])
def test_padding_is_zero(kind, generator):
    """What lies behind the last output and input is the same in each file."""
    weight = rounded(torch.randn(17, 96, generator=generator), kind, 32)
    size = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int4": 0.5}[kind]
    width = 96 if kind not in ("int8", "int4") else 128
    assert weight.data.numel() == 32 * width * size
    ones = replace(weight, outputs=32, inputs=width if kind == "int8" else 96)
    if kind == "int8":
        ones = replace(ones, scales=torch.ones(32), zeros=torch.zeros(32, dtype=torch.uint8))
        assert not unpack(ones)[:, 96:].any()
    if kind == "int4":
        ones = replace(ones, zeros=torch.zeros_like(ones.zeros))
    assert not unpack(ones)[17:].any()


def test_shapes_that_no_kernel_has():
    values = torch.zeros(16, 2, 48, dtype=torch.uint8)
    whole, scales = torch.zeros(16, 1, 48, dtype=torch.uint8), torch.zeros(16, 1)
    calls = [
        lambda: pack_integers(whole, scales, None, bits=4),
        lambda: pack_integers(whole, scales, torch.zeros(16, 2, dtype=torch.uint8), bits=8),
        lambda: pack_integers(whole, scales, scales, bits=8),
        lambda: pack_integers(whole.int(), scales, None, bits=8),
        lambda: pack_integers(whole[0], scales, None, bits=8),
        lambda: pack_integers(whole, scales, None, bits=2),
        lambda: pack(torch.zeros(3), "float32"),
        lambda: pack(torch.zeros(3, 3), "int8"),
        lambda: pack_integers(values, torch.zeros(16, 2), None, bits=4),
        lambda: interleave(torch.zeros(17, 2), torch.zeros(17, 2)),
    ]
    for call in calls:
        with pytest.raises(OperatorInputError) as caught:
            call()
        assert caught.value.code == "weight-shape"

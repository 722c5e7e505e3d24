import pytest
import torch

from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.weights import interleave, pack, pack_integers, unpack


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


def test_shapes_that_no_kernel_has():
    values = torch.zeros(16, 2, 48, dtype=torch.uint8)
    calls = [
        lambda: pack(torch.zeros(3), "float32"),
        lambda: pack(torch.zeros(3, 3), "int8"),
        lambda: pack_integers(values, torch.zeros(16, 2), None, bits=4),
        lambda: interleave(torch.zeros(17, 2), torch.zeros(17, 2)),
    ]
    for call in calls:
        with pytest.raises(OperatorInputError) as caught:
            call()
        assert caught.value.code == "weight-shape"

"""The ops of torch.ops.npu under torch.autocast, against the torch ops that they stand for."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

ops = torch.ops.npu
DEVICES = ("cpu", "npu")
LOWER = (torch.bfloat16, torch.float16)


def normalized(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, mean, var, eps=1e-5))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


# our op, the op that it replaces, shapes of the arguments
ROWS: dict[
    str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]]
] = {
    "linear_relu": (
        ops.linear_relu,
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        ((3, 8), (4, 8), (4,)),
    ),
    "linear_gelu": (
        ops.linear_gelu,
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        ((3, 8), (4, 8), (4,)),
    ),
    "addmm_relu": (
        ops.addmm_relu,
        lambda c, a, b: F.relu(torch.addmm(c, a, b)),
        ((4,), (3, 8), (8, 4)),
    ),
    "fused_attention": (
        ops.fused_attention,
        F.scaled_dot_product_attention,
        ((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8)),
    ),
    "rms_norm": (
        lambda x, w: ops.rms_norm(x, w, 1e-5),
        lambda x, w: F.rms_norm(x, (8,), w, 1e-5),
        ((3, 8), (8,)),
    ),
    "swiglu": (ops.swiglu, lambda gate, up: F.silu(gate) * up, ((3, 8), (3, 8))),
    "rotary_embedding": (ops.rotary_embedding, rotated, ((1, 2, 5, 8), (5, 4), (5, 4))),
}


def arguments(name: str, device: str, first: torch.dtype) -> list[Tensor]:
    """Random tensors, the first one of the given dtype, the others float32 like weights."""
    generator = torch.Generator().manual_seed(3)
    shapes = ROWS[name][2]
    dtypes = [first] + [torch.float32] * (len(shapes) - 1)
    return [
        torch.randn(shape, generator=generator).to(device, dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


@pytest.mark.parametrize("first", [torch.float32, *LOWER], ids=str)
@pytest.mark.parametrize("lower", LOWER, ids=str)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_an_op_is_cast_as_what_it_stands_for(
    name: str, device: str, lower: torch.dtype, first: torch.dtype
) -> None:
    fused, plain, _ = ROWS[name]
    given = arguments(name, device, first)
    with torch.autocast(device, dtype=lower):
        got, expected = fused(*given), plain(*given)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_a_folded_norm_keeps_its_statistics(device: str) -> None:
    x, weight = torch.randn(1, 3, 6, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    mean, var = torch.full((4,), 0.3, device=device), torch.full((4,), 1.7, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        got = ops.conv_bn_relu(x, weight, None, mean, var)
        expected = normalized(F.conv2d(x, weight), mean, var)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_a_quantized_product_is_lowered_and_keeps_its_scales(device: str) -> None:
    x, bias = torch.randn(2, 8, device=device), torch.randn(4, device=device)
    weight = torch.randint(-127, 127, (4, 8), dtype=torch.int8, device=device)
    scale = torch.rand(4, 1, device=device) / 100
    with torch.autocast(device, dtype=torch.bfloat16):
        got = ops.quantized_linear(x, weight, scale, None, bias)
        expected = F.linear(x, weight.float() * scale, bias)
    assert got.dtype == expected.dtype == torch.bfloat16
    exact = ops.quantized_linear(x.bfloat16(), weight, scale, None, bias.bfloat16())
    assert torch.equal(got, exact)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cached", [torch.float32, torch.bfloat16], ids=str)
def test_a_cache_is_written_in_its_own_dtype(device: str, cached: torch.dtype) -> None:
    query, key, value = (torch.randn(1, 2, 3, 8, device=device) for _ in range(3))
    caches = [torch.zeros(1, 2, 4, 8, device=device, dtype=cached) for _ in range(2)]
    with torch.autocast(device, dtype=torch.bfloat16):
        got = ops.fused_attention(query, key, value, *caches, 0)
        expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)
    assert torch.equal(caches[0][:, :, :3], key.to(cached))
    assert torch.equal(caches[1][:, :, :3], value.to(cached))


@pytest.mark.parametrize("device", DEVICES)
def test_weights_get_gradients_of_their_own_dtype(device: str) -> None:
    x, weight = torch.randn(3, 8, device=device), torch.randn(4, 8, device=device)
    weight.requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        ops.linear_relu(x, weight, None).sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
def test_float64_is_left_alone(device: str) -> None:
    x, weight = (torch.randn(shape, device=device).double() for shape in ((3, 8), (4, 8)))
    with torch.autocast(device, dtype=torch.bfloat16):
        assert ops.linear_relu(x, weight, None).dtype == torch.float64


def test_without_autocast_mixed_dtypes_stay_an_error() -> None:
    gate, up = torch.randn(3, 8, device="npu"), torch.randn(3, 8, device="npu").bfloat16()
    with pytest.raises(ValueError, match="op-dtype"):
        ops.swiglu(gate, up)

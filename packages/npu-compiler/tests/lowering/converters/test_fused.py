"""The ops of torch.ops.npu: lowered whole, as one program, and equal to eager."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.quantize import quantize_weight
from npu_ops.fused.quantized_linear import pack_int4

npu = torch.ops.npu
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear_with_an_activation_equals_eager(lowers, dtype):
    x, w, b = rand(2, 5, 16, dtype=dtype), rand(8, 16, dtype=dtype), rand(8, dtype=dtype)
    lowers(lambda x, w, b: npu.linear_relu(x, w, b), x, w, b)
    lowers(lambda x, w, b: npu.linear_gelu(x, w, b), x, w, b)
    lowers(lambda x, w, b: npu.linear_gelu(x, w, approximate="tanh") + b, x, w, b)


def test_addmm_relu_equals_eager(lowers):
    lowers(
        lambda i, a, b: npu.addmm_relu(i, a, b, beta=0.5, alpha=2), rand(7), rand(5, 9), rand(9, 7)
    )


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_conv_bn_relu_equals_eager(lowers, dtype, affine):
    parts = [rand(2, 4, 9, 9), rand(6, 2, 3, 3), rand(6), rand(6), torch.rand(6) + 0.5]
    parts += [rand(6), rand(6)] if affine else []
    lowers(
        lambda *given: npu.conv_bn_relu(*given, stride=[2], padding=[1, 0], groups=2),
        *(part.to(dtype) for part in parts),
        tolerance=4e-2 if dtype is torch.bfloat16 else None,
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rms_norm_equals_eager(lowers, dtype):
    x, w = rand(2, 3, 64, dtype=dtype), rand(64, dtype=dtype)
    lowers(lambda x, w: npu.rms_norm(x, w, 1e-5), x, w)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_swiglu_equals_eager(lowers, dtype):
    lowers(lambda g, u: npu.swiglu(g, u), rand(3, 16, dtype=dtype), rand(3, 16, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("table", [(6, 16), (2, 6, 16), (1, 6, 9)])
def test_rotary_embedding_equals_eager(lowers, dtype, table):
    def turned(interleaved):
        return lambda x, c, s: npu.rotary_embedding(x, c, s, interleaved=interleaved)

    lowers(
        {"interleaved": turned(True), "halves": turned(False)},
        rand(2, 3, 6, 32, dtype=dtype), rand(*table), rand(*table),
        tolerance={torch.bfloat16: 3e-2, torch.float16: 4e-3}.get(dtype),
    )  # fmt: skip


ATTENTIONS = [
    (5, 5, {}),
    (5, 5, {"is_causal": True}),
    (3, 9, {"is_causal": True}),
    (1, 9, {"is_causal": True, "scale": 0.3}),
    (7, 9, {"is_causal": True, "window": 3}),
    (1, 9, {"is_causal": True, "window": 3}),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_equals_eager(lowers, dtype):
    def attend(queries, keys, options):
        return lambda q, k, v: npu.fused_attention(
            q[:, :, :queries], k[:, :, :keys], v[:, :, :keys], **options
        )

    query = rand(2, 6, 7, 16, dtype=dtype)
    key, value = (rand(2, 2, 9, 16, dtype=dtype) for _ in range(2))
    lowers({str(case): attend(*case) for case in ATTENTIONS}, query, key, value)


def test_attention_with_symbolic_lengths_equals_eager(lowers):
    def attend(q, k, v):
        q = q.unflatten(2, (4, 16)).transpose(1, 2)
        k, v = (part.unflatten(2, (2, 16)).transpose(1, 2) for part in (k, v))
        return npu.fused_attention(q, k, v, is_causal=True, window=4)

    def inputs(batch, queries, keys):
        return (rand(batch, queries, 64), rand(batch, keys, 32), rand(batch, keys, 32))

    # Sizes that are equal while tracing would stand for one symbol.
    lowers(attend, *inputs(3, 5, 7), dynamic=True, run_on=inputs(2, 3, 11))


class Quantized(torch.nn.Module):
    """A linear layer over a stored weight."""

    def __init__(self, bits, group_size, symmetric=False, inputs=128, outputs=24):
        super().__init__()
        stored = quantize_weight(
            torch.randn(outputs, inputs), bits=bits, group_size=group_size, symmetric=symmetric
        )
        values = stored.values.flatten(1)
        if bits == 4:
            values = pack_int4(values.int() + 8 if symmetric else values)
        zero = stored.zero_point
        self.bits = bits
        self.register_buffer("weight", values)
        self.register_buffer("scale", stored.scale[..., 0])
        self.register_buffer("zero", None if zero is None else zero[..., 0].contiguous())
        self.expected = stored.dequantize()

    def forward(self, x):
        return npu.quantized_linear(x, self.weight, self.scale, self.zero, bits=self.bits) * 1.5


WEIGHTS = [(8, None, True), (8, None, False), (8, 32, False), (4, 32, False), (4, 64, True)]


class QuantizedAlike(torch.nn.Module):
    """Layers over one input, by how each weight is stored."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleDict({str(how): Quantized(*how) for how in WEIGHTS})

    def forward(self, x):
        return {name: layer(x) for name, layer in self.layers.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_stored_weights_become_constants(compiled, close, dtype, device):
    model = QuantizedAlike().to(device)
    x = rand(3, 128, dtype=dtype).to(device)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 2e-5
    fast = compiled(model)
    with torch.no_grad():
        results, eager = fast(x), model(x)
    for name, layer in model.layers.items():
        close(results[name], eager[name], tolerance)
        plain = x.cpu().float() @ layer.expected.t() * 1.5
        close(results[name].float().cpu(), plain, tolerance)
    assert fast.programs == 1
    assert fast.eager_ops == []
    assert fast.records[0].programs[0].input_count == 1


def test_weight_of_8_bits_may_be_an_input(lowers):
    w = torch.randint(-128, 128, (6, 32), dtype=torch.int32).to(torch.int8)
    lowers(lambda x, w, s, b: npu.quantized_linear(x, w, s, None, b),
           rand(3, 32), w, torch.rand(6, 2), rand(6))  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_weight_of_4_bits_may_be_an_input(lowers, groups, dtype):
    given = (
        rand(3, 32, dtype=dtype),
        pack_int4(torch.arange(6 * 32).reshape(6, 32) * 7 % 16),
        torch.rand(6, groups),
        torch.randint(0, 16, (6, groups), dtype=torch.uint8),
    )
    lowers(lambda x, w, s, z: npu.quantized_linear(x, w, s, z, bits=4), *given)
    lowers(lambda x, w, s: npu.quantized_linear(x, w, s, bits=4), *given[:3])


@pytest.mark.parametrize("group_size", [None, 16])
def test_dynamic_quantize_equals_eager_but_for_ties(compiled, group_size):
    x = rand(5, 64)
    x[2] = 0
    fast = compiled(lambda x: npu.dynamic_quantize(x * 2, group_size=group_size))
    values, scale = fast(x)
    expected, expected_scale = npu.dynamic_quantize(x * 2, group_size=group_size)
    assert fast.programs == 1
    assert fast.eager_ops == []
    assert values.dtype is torch.int8
    torch.testing.assert_close(scale, expected_scale)
    assert int((values.int() - expected.int()).abs().max()) <= 1
    assert float((values != expected).float().mean()) < 0.02


def test_dynamic_quantize_of_half_precision_runs_eagerly(compiled):
    x = rand(5, 64, dtype=torch.bfloat16)
    fast = compiled(lambda x: npu.dynamic_quantize(x * 2))
    for ours, theirs in zip(fast(x), npu.dynamic_quantize(x * 2), strict=True):
        assert torch.equal(ours, theirs)
    assert fast.eager_ops == ["npu.dynamic_quantize.default"]


class Block(torch.nn.Module):
    """A decoder block of Llama's form out of our ops."""

    def __init__(self):
        super().__init__()
        shapes = {"qkv": (64, 32), "out": (32, 32), "up": (96, 32), "down": (32, 48), "norm": (32,)}
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape) / 4))

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        parts = (npu.rms_norm(x, self.norm) @ self.qkv.t()).view(batch, length, 8, 8)
        query, key, value = parts.transpose(1, 2).split((4, 2, 2), 1)
        query, key = (npu.rotary_embedding(part, cos, sin) for part in (query, key))
        seen = npu.fused_attention(query, key, value, is_causal=True)
        x = x + seen.transpose(1, 2).reshape(batch, length, 32) @ self.out.t()
        gate, up = (npu.rms_norm(x, self.norm) @ self.up.t()).chunk(2, -1)
        return x + npu.swiglu(gate, up) @ self.down.t()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_decoder_block_is_one_program(compiled, close, device):
    block = Block().to(device)
    given = [part.to(device) for part in (rand(2, 6, 32), rand(6, 4), rand(6, 4))]
    fast = compiled(block, fullgraph=True)
    with torch.no_grad():
        close(fast(*given), block(*given))
    assert fast.programs == 1
    assert fast.eager_ops == []


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_decoder_block_trains_as_eager_does(compiled, close, device):
    block = Block().to(device)
    given = [part.to(device) for part in (rand(2, 6, 32), rand(6, 4), rand(6, 4))]
    block(*given).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in block.parameters()]
    block.zero_grad()
    fast = compiled(block, fullgraph=True)
    fast(*given).square().mean().backward()
    close([parameter.grad for parameter in block.parameters()], expected, 1e-4)
    assert all(not op.startswith("npu.") for op in fast.eager_ops)


def test_mlp_with_conv_is_one_program(compiled, close):
    conv, weight, eye = rand(8, 3, 3, 3), rand(10, 8), torch.eye(8)
    statistics = [rand(8), torch.rand(8) + 0.5]

    def net(x):
        x = npu.conv_bn_relu(x, conv, None, *statistics, padding=[1]).mean((2, 3))
        return npu.linear_gelu(npu.linear_relu(x, eye), weight)

    fast = compiled(net)
    x = rand(2, 3, 8, 8)
    with torch.no_grad():
        close(fast(x), net(x))
    assert fast.programs == 1

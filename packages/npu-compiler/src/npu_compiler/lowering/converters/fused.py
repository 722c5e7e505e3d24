"""Converters of torch.ops.npu, in forms that plugins recognize as one operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.lowering import nan
from npu_compiler.lowering.context import MASKED, Context, same_size
from npu_compiler.lowering.converters.attention import attend
from npu_compiler.lowering.converters.convolution import convert_convolution
from npu_compiler.lowering.converters.matmul import convert_addmm, convert_linear
from npu_compiler.lowering.converters.normalization import batch_norm, rms
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

npu = torch.ops.npu

# The end of a slice without an end.
_END = np.iinfo(np.int64).max


@converter(npu.linear_relu.default)
def convert_linear_relu(ctx: Context, x: fx.Node, weight: fx.Node, bias: Any) -> Any:
    return _relu(ctx, convert_linear(ctx, x, weight, bias))


def _relu(ctx: Context, product: Any) -> ov.Output:
    value = product if isinstance(product, ov.Output) else product.output(0)
    result = ops.relu(value).output(0)
    return nan.guarded(value, result) if nan.is_exact(ctx, is_fused=True) else result


@converter(npu.linear_gelu.default)
def convert_linear_gelu(
    ctx: Context, x: fx.Node, weight: fx.Node, bias: Any, approximate: str
) -> Any:
    return ops.gelu(
        convert_linear(ctx, x, weight, bias), "tanh" if approximate == "tanh" else "erf"
    )


@converter(npu.addmm_relu.default)
def convert_addmm_relu(
    ctx: Context, input_: fx.Node, mat1: fx.Node, mat2: fx.Node, beta: Any, alpha: Any
) -> Any:
    return _relu(ctx, convert_addmm(ctx, input_, mat1, mat2, beta, alpha))


@converter(npu.conv_bn_relu.default)
def convert_conv_bn_relu(
    ctx: Context,
    x: fx.Node,
    weight: fx.Node,
    bias: Any,
    running_mean: fx.Node,
    running_var: fx.Node,
    bn_weight: Any,
    bn_bias: Any,
    eps: float,
    **windows: Any,
) -> Any:
    dtype = ctx.dtype(x)
    if bias is not None and ctx.dtype(bias) is not dtype:
        ctx.refuse("a bias of another dtype than the input")
    product = convert_convolution(ctx, x, weight, bias, **windows)
    value = product if isinstance(product, ov.Output) else product.output(0)
    parts = (bn_weight, bn_bias, running_mean, running_var)
    return _relu(ctx, batch_norm(ctx, value, ctx.sizes(weight)[0], dtype, parts, eps))


@converter(npu.rms_norm.default)
def convert_rms_norm(ctx: Context, x: fx.Node, weight: fx.Node, eps: float) -> Any:
    return rms(ctx, x, [1], weight, eps)[0]


@converter(npu.swiglu.default)
def convert_swiglu(ctx: Context, gate: fx.Node, up: fx.Node) -> Any:
    work = torch.float32
    value = ops.multiply(ops.swish(ctx.get(gate, work)), ctx.get(up, work)).output(0)
    return ctx.convert(value, ctx.dtype(gate))


@converter(npu.rotary_embedding.default)
def convert_rotary_embedding(
    ctx: Context, x: fx.Node, cos: fx.Node, sin: fx.Node, interleaved: bool
) -> Any:
    half, width = ctx.sizes(cos)[-1], ctx.sizes(x)[-1]
    if half is None or width is None:
        ctx.refuse("a symbolic head size")
    dtype = ctx.dtype(x)
    value = ctx.get(x, torch.float32)
    rotated = value if 2 * half == width else _last(ctx, value, 0, 2 * half)
    tables = (ctx.get(table, torch.float32) for table in (cos, sin))
    rank = ctx.rank(cos)
    c, s = (ctx.unsqueeze(table, [0, 1] if rank == 2 else [1]) for table in tables)
    turn = _turn_neighbours if interleaved else _turn_halves
    result = turn(ctx, rotated, c, s, half)
    if 2 * half != width:
        result = ops.concat([result, _last(ctx, value, 2 * half, _END)], -1).output(0)
    return ctx.convert(result, dtype)


def _last(ctx: Context, value: ov.Output, first: int, end: int) -> ov.Output:
    one = ctx.integers([1])
    return ops.slice(
        value, ctx.integers([first]), ctx.integers([end]), one, ctx.integers([3])
    ).output(0)


def _turn_halves(ctx: Context, x: ov.Output, c: ov.Output, s: ov.Output, half: int) -> ov.Output:
    # From slices, a product by -1 and doubled tables the CPU plugin fuses one RoPE node (OpenVINO
    # 2026.4.1); not from a split.
    first, second = _last(ctx, x, 0, half), _last(ctx, x, half, _END)
    turned = ops.concat([ops.multiply(second, ctx.number(-1.0, torch.float32)), first], -1)
    both = (ops.concat([table, table], -1) for table in (c, s))
    return ops.add(ops.multiply(x, next(both)), ops.multiply(turned, next(both))).output(0)


def _turn_neighbours(
    ctx: Context, x: ov.Output, c: ov.Output, s: ov.Output, half: int
) -> ov.Output:
    pairs = ops.reshape(x, ctx.integers([0, 0, 0, half, 2]), True)
    parts = ops.split(pairs, ctx.number(4, torch.int64), 2)
    first, second = parts.output(0), parts.output(1)
    c, s = ctx.unsqueeze(c, [4]), ctx.unsqueeze(s, [4])
    turned = [
        ops.subtract(ops.multiply(first, c), ops.multiply(second, s)),
        ops.add(ops.multiply(second, c), ops.multiply(first, s)),
    ]
    return ops.reshape(ops.concat(turned, 4), ctx.integers([0, 0, 0, 2 * half]), True).output(0)


@converter(npu.fused_attention.default)
def convert_fused_attention(
    ctx: Context,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    is_causal: bool,
    window: int | None,
    scale: Any,
) -> Any:
    queries, keys = ctx.meta(query).shape[2], ctx.meta(key).shape[2]
    # A single query sees all keys, except with a window. The node's causal flag requires as many
    # queries as keys.
    is_last = window is None and isinstance(queries, int) and queries == 1
    is_plain = not is_causal or is_last
    is_node_causal = not is_plain and window is None and same_size(queries, keys)
    bias = None
    if not is_plain and not is_node_causal:
        bias = _causal_bias(ctx, query, key, window)
    return attend(ctx, query, key, value, bias=bias, causal=is_node_causal, scale=scale)


def _causal_bias(ctx: Context, query: fx.Node, key: fx.Node, window: int | None) -> ov.Output:
    """Returns a (1, 1, queries, keys) bias; the queries have the last positions of the keys."""
    queries, keys = (ctx.reshape(ctx.size(part, 2), []) for part in (query, key))
    zero, one = ctx.number(0, torch.int64), ctx.number(1, torch.int64)
    at = ops.range(ops.subtract(keys, queries), keys, one, "i64").output(0)
    at = ctx.unsqueeze(at, [1])
    column = ops.range(zero, keys, one, "i64").output(0)
    hidden = ops.greater(column, at)
    if window is not None:
        passed = ops.less_equal(column, ops.subtract(at, ctx.number(window, torch.int64)))
        hidden = ops.logical_or(hidden, passed)
    dtype = ctx.dtype(query)
    bias = ops.select(hidden, ctx.number(MASKED, dtype), ctx.number(0.0, dtype)).output(0)
    return ctx.unsqueeze(bias, [0, 1])


@converter(npu.quantized_linear.default, quantized=True)
def convert_quantized_linear(
    ctx: Context,
    x: fx.Node,
    weight: fx.Node,
    scale: fx.Node,
    zero_point: Any,
    bias: Any,
    bits: int,
) -> Any:
    # The form that npu_compiler.quantize produces: plugins keep such constants compressed.
    sizes = [ctx.sizes(part) for part in (weight, scale)]
    outputs, columns = sizes[0]
    groups = sizes[1][1]
    if outputs is None or columns is None or groups is None:
        ctx.refuse("a weight of symbolic size")
    work, dtype = torch.float32, ctx.dtype(x)
    inputs = columns * (8 // bits)
    grouped = [outputs, groups, inputs // groups] if groups > 1 else [outputs, inputs]
    per_group = [outputs, groups, 1] if groups > 1 else [outputs, 1]
    integers, zero = _integers(ctx, weight, zero_point, bits, grouped, per_group)
    value = ops.convert(integers, ov.Type.f32)
    if zero is not None:
        value = ops.subtract(value, ops.convert(zero, ov.Type.f32))
    value = ops.multiply(value, ctx.reshape(ctx.get(scale, work), per_group))
    if groups > 1:
        value = ops.reshape(value, ctx.integers([outputs, inputs]), False)
    result = ops.matmul(ctx.get(x, work), value, False, True).output(0)
    if bias is not None:
        result = ops.add(result, ctx.get(bias, work)).output(0)
    return ctx.convert(result, dtype)


def _integers(
    ctx: Context,
    weight: fx.Node,
    zero_point: Any,
    bits: int,
    grouped: list[int],
    per_group: list[int],
) -> tuple[ov.Output, ov.Output | None]:
    """Returns the stored weight and its zero points, None if these are 0."""
    if bits == 4:
        packed = _bytes_of(ctx, weight)
        integers = _halves(ctx, weight, grouped) if packed is None else _nibbles(packed, grouped)
        if zero_point is None:
            return integers, _nibbles(np.full(1, 8, np.uint8), [])
        zeros = _bytes_of(ctx, zero_point)
        if zeros is None:
            return integers, ctx.reshape(ctx.get(zero_point), per_group)
        zeros = np.append(zeros, np.zeros(zeros.size % 2, np.uint8))
        return integers, _nibbles(zeros[0::2] | (zeros[1::2] << 4), per_group)
    integers = ctx.reshape(ctx.get(weight), grouped)
    if zero_point is not None:
        return integers, ctx.reshape(ctx.get(zero_point), per_group)
    if ctx.dtype(weight) is torch.uint8:
        return integers, ops.constant(128, ov.Type.u8).output(0)
    return integers, None


def _bytes_of(ctx: Context, operand: fx.Node) -> np.ndarray[Any, Any] | None:
    """Returns the flat bytes of a constant; None for an input of the program."""
    node = ctx.get(operand).get_node()
    if node.get_type_name() != "Constant":
        return None
    data: np.ndarray[Any, Any] = node.get_tensor_view().data
    return data.reshape(-1)


def _halves(ctx: Context, packed: fx.Node, shape: list[int]) -> ov.Output:
    """Returns the low and the high half of each byte as float32, by arithmetic of every device."""
    both = ctx.unsqueeze(ctx.convert(ctx.get(packed), torch.float32), [2])
    sixteen = ctx.number(16.0, torch.float32)
    high = ops.floor(ops.divide(both, sixteen)).output(0)
    low = ops.subtract(both, ops.multiply(high, sixteen)).output(0)
    return ctx.reshape(ops.concat([low, high], 2).output(0), shape)


def _nibbles(packed: np.ndarray[Any, Any], shape: list[int]) -> ov.Output:
    # A copy: the constant holds no reference to the memory behind the array.
    flat = np.ascontiguousarray(packed).reshape(-1)
    tensor = ov.Tensor(flat, ov.Shape(shape), ov.Type.u4)
    return ov.op.Constant(tensor, shared_memory=False).output(0)


def _rule_exact_steps(node: fx.Node, x: fx.Node, **_: Any) -> str | None:
    dtype = x.meta["val"].dtype
    if dtype is not torch.float32:
        return f"steps of {dtype} values would be computed in {dtype}"
    return None


@converter(npu.dynamic_quantize.default, rule=_rule_exact_steps, quantized=True)
def convert_dynamic_quantize(ctx: Context, x: fx.Node, group_size: int | None) -> Any:
    rank, width = ctx.rank(x), ctx.sizes(x)[-1]
    if width is None:
        ctx.refuse("a symbolic width")
    size = width if group_size is None else group_size
    value = ctx.get(x)
    groups = ops.reshape(value, ctx.integers([*[0] * (rank - 1), width // size, size]), True)
    largest = ops.reduce_max(ops.abs(groups), ctx.integers([rank]), True)
    zero, one = ctx.number(0.0, torch.float32), ctx.number(1.0, torch.float32)
    step = ops.divide(largest, ctx.number(127.0, torch.float32))
    most = ctx.number(torch.finfo(torch.float32).max, torch.float32)
    usable = ops.logical_and(ops.greater(step, zero), ops.less_equal(step, most))
    ratio = ops.divide(groups, ops.select(usable, step, one))
    rounded = ops.clamp(ops.round(ratio, "half_to_even"), -127.0, 127.0)
    values = ops.convert(ops.select(usable, rounded, zero), ov.Type.i8)
    whole = ops.reshape(values, ctx.integers([*[0] * (rank - 1), width]), True)
    return whole, ctx.squeeze(step.output(0), [rank])

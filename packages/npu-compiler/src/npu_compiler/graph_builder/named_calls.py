"""Graph calls with the names of intel-npu-acceleration-library's NNFactory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from npu_compiler.errors import GraphError
from npu_compiler.graph_builder.recording import GraphTensor, Recording, find_place
from npu_compiler.lowering.context import DEVICE_DTYPES, NARROW_DTYPES
from npu_runtime.public_calls import public_call

__all__ = ["NamedCalls", "torch_dtype_of"]

Axes = int | Sequence[int] | None


def torch_dtype_of(dtype: Any) -> torch.dtype:
    """Returns torch's dtype for a dtype of torch or numpy, or a name; else [graph-parameter]."""
    if isinstance(dtype, torch.dtype):
        return dtype
    name = dtype.removeprefix("torch.") if isinstance(dtype, str) else None
    if name is None:
        try:
            name = np.dtype(dtype).name
        except (TypeError, ValueError):
            name = ""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise GraphError(
            f"GraphBuilder: `dtype` must be a dtype of torch or numpy, or its name, got {dtype!r}. "
            "Pass "
            "torch.float32, for example.",
            code="graph-parameter",
        )
    return found


def _computable(name: str, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype if a program can have tensors of it; else [graph-parameter]."""
    known = DEVICE_DTYPES | NARROW_DTYPES
    if dtype in known:
        return dtype
    advice = "Pass one of these"
    if str(dtype) in ("torch.int4", "torch.uint4"):
        advice = 'For weights of 4 bits, give them in float32 to GraphBuilder(dtype="int4")'
    names = ", ".join(sorted(str(one).removeprefix("torch.") for one in known))
    raise GraphError(
        f"GraphBuilder.{name}: a graph tensor's dtype must be one of {names}, got {dtype}. "
        f"{advice}.",
        code="graph-parameter",
    )


def _named(function: Callable[..., Any], text: str) -> Callable[..., GraphTensor]:
    """Returns a method that is one torch call."""

    def method(self: NamedCalls, *args: Any, **kwargs: Any) -> GraphTensor:
        return self._call(function, args, kwargs)

    method.__doc__ = text
    return method


def _reduction(function: Callable[..., Any], text: str) -> Callable[..., GraphTensor]:
    """Returns a method that reduces over axes."""

    def method(
        self: NamedCalls, x: GraphTensor, reduction_axes: Axes = None, keep_dims: bool = False
    ) -> GraphTensor:
        return self._call(function, (x, _axes(x, reduction_axes), keep_dims))

    method.__doc__ = text
    return method


def _swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


def _grn(x: torch.Tensor, bias: float = 1e-6) -> torch.Tensor:
    return x / (x.square().sum(1, keepdim=True) + bias).sqrt()


class NamedCalls:
    """The inputs, constants and named calls of a GraphBuilder."""

    _recording: Recording

    def parameter(self, shape: Sequence[int], dtype: Any = torch.float32) -> GraphTensor:
        """Adds an input.

        Args:
            shape: positive sizes.
            dtype: a torch dtype, a numpy dtype or a name, of float32, float16, bfloat16, bool, and
                integers from 8 to 64 bits. Integers of 8 and 16 bits can be moved, compared and
                cast.

        Raises:
            GraphError: [graph-parameter] for another size or dtype.
        """
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise GraphError(
                f"GraphBuilder.parameter: `shape` must have positive integers, got {tuple(shape)}. "
                "Build a graph for each shape.",
                code="graph-parameter",
            )
        return self._recording.add_parameter(shape, _computable("parameter", torch_dtype_of(dtype)))

    def constant(self, data: Any) -> GraphTensor:
        """Adds a constant: a tensor, an array, a number or a list of numbers.

        As in torch, Python numbers become float32 or int64.

        Raises:
            GraphError: [graph-parameter] for data that is not numeric.
        """
        if isinstance(data, GraphTensor):
            return data
        if isinstance(data, torch.Tensor):
            return self._add_constant(data)
        try:
            tensor = torch.as_tensor(data)
        except (TypeError, ValueError, RuntimeError) as failure:
            raise GraphError(
                f"GraphBuilder.constant: `data` must be a tensor, an array or numbers, got "
                f"{type(data).__name__}: {failure}. Pass one of these.",
                code="graph-parameter",
            ) from failure
        return self._add_constant(tensor)

    def _add_constant(self, tensor: torch.Tensor) -> GraphTensor:
        if tensor.dtype is not torch.float64:  # numpy's default; it can be cast in the graph
            _computable("constant", tensor.dtype)
        return self._recording.add_constant(tensor)

    def to(self, x: GraphTensor, dtype: Any) -> GraphTensor:
        """Casts."""
        return self._call(torch.Tensor.to, (x, torch_dtype_of(dtype)))

    @public_call
    def matmul(
        self, x: torch.Tensor, weights: torch.Tensor, trA: bool = False, trB: bool = True
    ) -> GraphTensor:
        """Multiplies matrices; trB is for weights of shape (outputs, inputs), as in torch."""
        left = self._call(torch.Tensor.mT.__get__, (x,)) if trA else x  # type: ignore[attr-defined]
        right = (
            self._call(torch.Tensor.mT.__get__, (weights,))  # type: ignore[attr-defined]
            if trB
            else weights
        )
        return self._call(torch.matmul, (left, right))

    def linear(
        self,
        x: GraphTensor,
        output_channels: int,
        input_channels: int,
        bias: bool = False,
        act_dtype: Any = None,
        wt_dtype: Any = None,
    ) -> GraphTensor:
        """Adds a linear layer with weight and bias as new parameters of the graph.

        Args:
            x: (..., input_channels).
            output_channels: rows of the weight.
            input_channels: columns of the weight.
            bias: whether to add a bias of shape (output_channels,).
            act_dtype: dtype to which x is cast; by default none.
            wt_dtype: dtype of the parameters; by default x's.
        """
        given = x if act_dtype is None else self.to(x, act_dtype)
        # A value that is not a graph tensor has no dtype; the call below rejects it.
        dtype = getattr(given, "dtype", torch.float32) if wt_dtype is None else wt_dtype
        weight = self.parameter((output_channels, input_channels), dtype)
        offset = self.parameter((output_channels,), dtype) if bias else None
        return self._call(F.linear, (given, weight, offset))

    def convolution(
        self,
        x: GraphTensor,
        weights: GraphTensor,
        bias: GraphTensor | None = None,
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> GraphTensor:
        """Convolves x (batch, channels, ...) over 1, 2 or 3 spatial dimensions."""
        function = _of_rank("conv{}d", x)
        return self._call(function, (x, weights, bias, strides, padding, dilation, groups))

    def transpose(self, x: GraphTensor, input_order: Sequence[int]) -> GraphTensor:
        """Permutes all axes."""
        return self._call(torch.permute, (x, tuple(input_order)))

    def unsqueeze(self, x: GraphTensor, axis: int | Sequence[int]) -> GraphTensor:
        """Adds axes of size 1 at these positions of the result.

        Raises:
            GraphError: [graph-op] for a position outside of the result, or a repeated one.
        """
        axes = (axis,) if isinstance(axis, int) else tuple(map(operator.index, axis))
        for place in _places("unsqueeze", axes, _rank(x) + len(axes)):
            x = self._call(torch.unsqueeze, (x, place))
        return x

    def slice(
        self,
        x: GraphTensor,
        begin: Sequence[int],
        end: Sequence[int],
        stride: Sequence[int] | None = None,
    ) -> GraphTensor:
        """Takes x[begin:end:stride] of the leading axes.

        Raises:
            GraphError: [graph-op] if the lengths differ.
        """
        steps = [1] * len(begin) if stride is None else list(stride)
        if not len(begin) == len(end) == len(steps):
            raise GraphError(
                "GraphBuilder.slice: `begin`, `end` and `stride` must have the same length, got "
                f"{len(begin)}, "
                f"{len(end)} and {len(steps)}. Give a number per axis.",
                code="graph-op",
            )
        parts = tuple(map(slice, begin, end, steps))
        return self._call(torch.Tensor.__getitem__, (x, parts))

    def concat(self, *tensors: GraphTensor, axis: int) -> GraphTensor:
        """Joins tensors along an axis."""
        return self._call(torch.cat, (list(tensors), axis))

    def reduce_prod(
        self, x: GraphTensor, reduction_axes: Axes = None, keep_dims: bool = False
    ) -> GraphTensor:
        """Multiplies over axes, by default all.

        Raises:
            GraphError: [graph-op] for an axis outside of x, or a repeated one.
        """
        for axis in reversed(_places("reduce_prod", _axes(x, reduction_axes), _rank(x))):
            x = self._call(torch.prod, (x, axis, keep_dims))
        return x

    def normL2(self, x: GraphTensor, axis: int, eps: float = 1e-12) -> GraphTensor:
        """Divides by sqrt(sum of squares over an axis + eps)."""
        total = self._call(torch.sum, (self._call(torch.mul, (x, x)), axis, True))
        return self._call(torch.div, (x, self._call(torch.sqrt, (total + eps,))))

    def avg_pooling(
        self,
        x: GraphTensor,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> GraphTensor:
        """Averages windows of x (batch, channels, ...)."""
        function = _of_rank("avg_pool{}d", x)
        return self._call(
            function, (x, kernel_size, strides, padding, ceil_mode, count_include_pad)
        )

    def max_pooling(
        self,
        x: GraphTensor,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
    ) -> GraphTensor:
        """Takes the maxima of windows of x (batch, channels, ...)."""
        function = _of_rank("max_pool{}d", x)
        return self._call(function, (x, kernel_size, strides, padding), {"ceil_mode": ceil_mode})

    def adaptive_avg_pool(self, x: GraphTensor, output_size: int | Sequence[int]) -> GraphTensor:
        """Averages x (batch, channels, ...) over output_size windows."""
        return self._call(_of_rank("adaptive_avg_pool{}d", x), (x, output_size))

    def adaptive_max_pool(self, x: GraphTensor, output_size: int | Sequence[int]) -> GraphTensor:
        """Takes the maxima of output_size windows of x (batch, channels, ...)."""
        return self._call(_of_rank("adaptive_max_pool{}d", x), (x, output_size))

    def gather(self, x: GraphTensor, indices: Any, axis: int = 0) -> GraphTensor:
        """Gathers entries of an axis; the result has the shape of indices in place of the axis.

        Raises:
            GraphError: [graph-op] for an axis outside of x, or constant indices out of range.
        """
        places = self.constant(indices)
        (axis,) = _places("gather", (axis,), _rank(x))
        flat = self._call(torch.index_select, (x, axis, self._call(torch.flatten, (places,))))
        shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
        return self._call(torch.reshape, (flat, shape))

    def scaled_dot_product_attention(
        self,
        query: GraphTensor,
        key: GraphTensor,
        value: GraphTensor,
        attn_mask: GraphTensor | None = None,
        is_causal: bool = False,
    ) -> GraphTensor:
        """Computes attention; a mask is bool, or added to the scores."""
        function = F.scaled_dot_product_attention
        return self._call(function, (query, key, value, attn_mask, 0.0, is_causal))

    def convert_to_fp16(self, x: GraphTensor) -> GraphTensor:
        """Casts to float16."""
        return self.to(x, torch.float16)

    reduce_max = _reduction(torch.amax, "Takes the maximum over axes, by default all.")
    reduce_min = _reduction(torch.amin, "Takes the minimum over axes, by default all.")
    reduce_mean = _reduction(torch.mean, "Takes the mean over axes, by default all.")
    reduce_sum = _reduction(torch.sum, "Sums over axes, by default all.")
    reshape = _named(torch.reshape, "Reshapes x; one size may be -1.")
    squeeze = _named(torch.squeeze, "Removes all axes of size 1, or the given ones.")
    softmax = _named(
        lambda x, axis=-1: torch.softmax(x, axis), "Softmax over an axis, by default the last."
    )
    log_softmax = _named(
        lambda x, axis=-1: torch.log_softmax(x, axis),
        "Logarithm of softmax over an axis, by default the last.",
    )
    power = _named(torch.pow, "Raises x to a power, which is a tensor or a number.")
    prelu = _named(F.prelu, "PReLU, whose slope is one number or one per channel.")
    clamp = _named(torch.clamp, "Clamps x to a minimum and a maximum.")
    elu = _named(F.elu, "ELU with alpha, by default 1.")
    grn = _named(_grn, "Divides by the root of the sum of squares over channels, and adds a bias.")
    eltwise_add = _named(torch.add, "Adds.")
    eltwise_mul = _named(torch.mul, "Multiplies elementwise.")
    eltwise_div = _named(torch.div, "Divides elementwise.")
    abs = _named(torch.abs, "Absolute value.")
    acos = _named(torch.acos, "Arc cosine.")
    acosh = _named(torch.acosh, "Inverse hyperbolic cosine.")
    asin = _named(torch.asin, "Arc sine.")
    asinh = _named(torch.asinh, "Inverse hyperbolic sine.")
    atan = _named(torch.atan, "Arc tangent.")
    atanh = _named(torch.atanh, "Inverse hyperbolic tangent.")
    ceiling = _named(torch.ceil, "Rounds up to an integer.")
    cos = _named(torch.cos, "Cosine.")
    cosh = _named(torch.cosh, "Hyperbolic cosine.")
    erf = _named(torch.erf, "Error function.")
    exp = _named(torch.exp, "Exponential.")
    floor = _named(torch.floor, "Rounds down to an integer.")
    gelu = _named(F.gelu, "GELU, exact or approximate='tanh'.")
    gelu_erf = _named(F.gelu, "GELU, exact.")
    hsigmoid = _named(F.hardsigmoid, "Hard sigmoid.")
    hswish = _named(F.hardswish, "Hard swish.")
    log = _named(torch.log, "Natural logarithm.")
    mish = _named(F.mish, "Mish.")
    negative = _named(torch.neg, "Negation.")
    relu = _named(torch.relu, "ReLU.")
    round = _named(torch.round, "Rounds to the nearest integer, halves to even.")
    sigmoid = _named(torch.sigmoid, "Sigmoid.")
    sign = _named(torch.sign, "Sign.")
    sin = _named(torch.sin, "Sine.")
    sinh = _named(torch.sinh, "Hyperbolic sine.")
    softplus = _named(F.softplus, "Softplus.")
    softsign = _named(F.softsign, "x / (1 + |x|).")
    sqrt = _named(torch.sqrt, "Square root.")
    swish = _named(_swish, "x * sigmoid(beta * x), beta by default 1.")
    tan = _named(torch.tan, "Tangent.")
    tanh = _named(torch.tanh, "Hyperbolic tangent.")

    def _call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> GraphTensor:
        result: GraphTensor = self._recording.call(function, args, kwargs or {})
        return result


def _rank(x: GraphTensor) -> int:
    if not isinstance(x, torch.Tensor):
        raise GraphError(
            f"GraphBuilder: the first argument must be a tensor, got {type(x).__name__}. Pass a "
            "tensor of the graph.",
            code="graph-op",
        )
    return x.dim()


def _of_rank(name: str, x: GraphTensor) -> Callable[..., Any]:
    """Returns torch's function for 1, 2 or 3 dimensions after batch and channels."""
    function: Callable[..., Any] = getattr(F, name.format({3: 1, 5: 3}.get(_rank(x), 2)))
    return function


def _axes(x: GraphTensor, axes: Axes) -> tuple[int, ...]:
    rank = max(_rank(x), 1)
    if axes is None:
        return tuple(range(x.dim()))
    if isinstance(axes, int):
        return (axes,)
    if len(axes) > rank:
        raise GraphError(
            f"GraphBuilder ({find_place()}): there must be at most {rank} axes, got {len(axes)}. "
            "Omit the others.",
            code="graph-op",
        )
    return tuple(map(operator.index, axes))


def _places(name: str, axes: Sequence[int], rank: int) -> list[int]:
    """Returns axes counted from the front, ascending."""
    if wrong := [axis for axis in axes if not -max(rank, 1) <= axis < max(rank, 1)]:
        raise GraphError(
            f"GraphBuilder.{name} ({find_place()}): `axes` must be from {-max(rank, 1)} to "
            f"{max(rank, 1) - 1}, got {wrong[0]}. Name one of these.",
            code="graph-op",
        )
    places = sorted(axis % max(rank, 1) for axis in axes)
    if len({*places}) < len(places):
        raise GraphError(
            f"GraphBuilder.{name} ({find_place()}): each axis must be named once, got "
            f"{tuple(axes)}. "
            "Omit the second.",
            code="graph-op",
        )
    return places

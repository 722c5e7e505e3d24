"""Convolutions over one, two or three axes on numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_ops.arrays.operator import Array, per_axis, shape_of, size_of
from npu_ops.arrays.products import Slot, WeightedOperator
from npu_ops.errors import OperatorInputError

__all__ = ["Convolution"]


class Convolution(WeightedOperator):
    """A convolution (cross-correlation), as torch's conv1d to conv3d."""

    def __init__(
        self,
        input_shape: Sequence[int],
        weights_shape: Sequence[int],
        bias: bool = False,
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        profile: bool = False,
        device: Any = None,
    ) -> None:
        """Sets the shapes.

        Args:
            input_shape: of X: (batch, channels, and one to three sizes).
            weights_shape: of W: (filters, channels / groups, and as many sizes).
            bias: whether to add a bias.
            strides: of the filter, for all axes or each.
            padding: zeros at both ends, for all axes or each.
            dilation: spacing between the filter's elements, for all axes or each.
            groups: parts into which channels and filters are divided.
            profile: whether to record the times in `layers`.
            device: "npu", "npu:0", or the vendor's name of the device in use.

        Raises:
            OperatorInputError: the shapes do not match (code ``operator-input``); the process uses
                another device (code ``operator-device``).
        """
        subject = "npu_ops.Convolution"
        shape = shape_of(subject, "input_shape", input_shape, ranks=(3, 4, 5))
        weights = shape_of(subject, "weights_shape", weights_shape, ranks=(len(shape),))
        axes = len(shape) - 2
        self._strides = per_axis(subject, "strides", strides, axes, least=1)
        self._padding = per_axis(subject, "padding", padding, axes, least=0)
        self._dilation = per_axis(subject, "dilation", dilation, axes, least=1)
        self._groups = size_of(subject, "groups", groups)
        if weights[0] % self._groups or shape[1] != weights[1] * self._groups:
            raise OperatorInputError(
                f"{subject}: `weights_shape` must be (filters, channels / groups, ...), and groups "
                f"must divide the filters, got {weights} for input_shape {shape}, groups {groups}.",
                code="operator-input",
            )
        spans = (1 + d * (size - 1) for d, size in zip(self._dilation, weights[2:], strict=True))
        for axis, span in enumerate(spans):
            padded = shape[2 + axis] + 2 * self._padding[axis]
            if span > padded:
                raise OperatorInputError(
                    f"{subject}: the filter must fit into the padded input, got a span of {span} "
                    f"for {padded} elements of axis {2 + axis}. Pad more, or pass a smaller "
                    "filter.",
                    code="operator-input",
                )
        slots = [Slot("W", weights)]
        if bias:
            slots.append(Slot("bias", (weights[0],)))
        self._has_bias = bool(bias)
        super().__init__(shape, slots, profile=profile, device=device)

    def set_weights(self, W: Array, bias: Array | None = None) -> None:
        """Makes the weights constants of the program; later changes to the arrays have no effect.

        Args:
            W: of weights_shape, float16 or float32.
            bias: (filters,) or (1, filters, 1, ...), of W's dtype, if the operator has a bias.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``).
        """
        self._set(None, self._given(W, bias))

    def run(self, X: Array, W: Array | None = None, bias: Array | None = None) -> Array:
        """Convolves.

        Args:
            X: of input_shape, of the weights' dtype.
            W: of weights_shape, float16 or float32; by default, the weights from `set_weights`.
            bias: as in `set_weights`.

        Returns:
            (batch, filters, ...), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``), or there
                are no weights (code ``operator-weights``).
        """
        return self._run(X, self._given(W, bias))

    def _given(self, w: Any, bias: Any) -> tuple[Any, ...]:
        if not self._has_bias and bias is None:
            return (w,)
        filters = self._slots[0].shape[0]
        spread = (1, filters) + (1,) * (len(self._input_shape) - 2)
        if isinstance(bias, np.ndarray) and bias.shape == spread:
            bias = bias.reshape(filters)
        return (w, bias)

    def _compute(self, x: ov.Output, *weights: ov.Output) -> ov.Output:
        w, *rest = weights
        pads = list(self._padding)
        arguments = (list(self._strides), pads, pads, list(self._dilation))
        filters, channels, *sizes = self._slots[0].shape
        result: Any
        if self._groups == 1:
            result = ops.convolution(x, w, *arguments)
        else:
            grouped = [self._groups, filters // self._groups, channels, *sizes]
            w = ops.reshape(w, ops.constant(grouped), False).output(0)
            result = ops.group_convolution(x, w, *arguments)
        if rest:
            spread = ops.constant([1, filters, *(1 for _ in sizes)])
            result = ops.add(result, ops.reshape(rest[0], spread, False))
        return result.output(0)

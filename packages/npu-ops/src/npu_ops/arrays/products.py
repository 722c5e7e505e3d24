"""Matrix products `X * W^T` on numpy arrays, with float weights and with quantized ones."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
from numpy.typing import DTypeLike

from npu_ops.arrays.arguments import Array, size_of
from npu_ops.arrays.weights import PACKED, Slot, WeightedOperator
from npu_ops.errors import OperatorInputError

__all__ = ["Linear", "MatMul", "QLinear", "QMatMul"]


class _Product(WeightedOperator):
    """`X * W^T`, plus a bias where there is one."""

    def __init__(
        self,
        sizes: tuple[Any, Any, Any],
        *,
        bias: bool = False,
        integers: np.dtype[Any] | None = None,
        profile: bool,
        device: Any,
    ) -> None:
        subject = f"npu_ops.{type(self).__name__}"
        names = ("inC", "outC", "batch")
        self.inC, self.outC, self.batch = (
            size_of(subject, name, size) for name, size in zip(names, sizes, strict=True)
        )
        columns = self.inC
        if integers == PACKED:
            if self.inC % 2:
                raise OperatorInputError(
                    f"{subject}: inC must be even where two 4-bit weights share a byte; "
                    f"got {self.inC}. Pad the rows with a zero.",
                    code="operator-input",
                )
            columns //= 2
        slots = [Slot("W", (self.outC, columns), integers)]
        if integers is not None:
            slots.append(Slot("scale", (self.outC, 1)))
        if bias:
            slots.append(Slot("bias", (self.outC,)))
        self._is_quantized = integers is not None
        super().__init__((self.batch, self.inC), slots, profile=profile, device=device)

    def _compute(self, x: ov.Output, *weights: ov.Output) -> ov.Output:
        w, *rest = weights
        if self._is_quantized:
            # The scale belongs to the weight: behind the product the device would not see integers.
            w = ops.multiply(w, rest.pop(0)).output(0)
        result = ops.matmul(x, w, False, True).output(0)
        return ops.add(result, rest[0]).output(0) if rest else result


class _QuantizedProduct(_Product):
    """`X * (W * scale)^T`, the weights one integer or two in a byte."""

    def __init__(
        self,
        inC: int,
        outC: int,
        batch: int,
        profile: bool = False,
        device: Any = None,
        dtype: DTypeLike = np.int8,
    ) -> None:
        """Says the sizes.

        Args:
            inC: columns of X and W.
            outC: rows of W, columns of the result.
            batch: rows of X and of the result.
            profile: whether `layers` has times.
            device: "npu", "npu:0", or the vendor's name of the device that serves.
            dtype: of W: int8, or uint8 for two 4-bit numbers in a byte.

        Raises:
            OperatorInputError: a size or dtype cannot be (code ``operator-input``); another device
                serves (code ``operator-device``).
        """
        integers = _integers(f"npu_ops.{type(self).__name__}", dtype)
        super().__init__((inC, outC, batch), integers=integers, profile=profile, device=device)


class MatMul(_Product):
    """`X * W^T`, the weights given in each call."""

    def __init__(
        self, inC: int, outC: int, batch: int, profile: bool = False, device: Any = None
    ) -> None:
        """Says the sizes.

        Args:
            inC: columns of X and W.
            outC: rows of W, columns of the result.
            batch: rows of X and of the result.
            profile: whether `layers` has times.
            device: "npu", "npu:0", or the vendor's name of the device that serves.

        Raises:
            OperatorInputError: a size is not positive (code ``operator-input``); another device
                serves (code ``operator-device``).
        """
        super().__init__((inC, outC, batch), profile=profile, device=device)

    def run(self, X: Array, W: Array) -> Array:
        """Multiplies.

        Args:
            X: (batch, inC), float16 or float32.
            W: (outC, inC), of X's dtype.

        Returns:
            (batch, outC), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype is another (code ``operator-input``).
        """
        return self._run(X, (W,))


class QMatMul(_QuantizedProduct):
    """`X * (W * scale)^T` with quantized weights given in each call."""

    def run(self, X: Array, W: Array, scale: Array) -> Array:
        """Multiplies.

        Args:
            X: (batch, inC), float16 or float32.
            W: (outC, inC) int8; or (outC, inC / 2) uint8, the first of two 4-bit numbers in the
                low half of a byte, both in two's complement.
            scale: (outC, 1), of X's dtype: what one step of a row's integers stands for.

        Returns:
            (batch, outC), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype is another (code ``operator-input``).
        """
        return self._run(X, (W, scale))


class Linear(_Product):
    """`X * W^T + bias` with weights that are set once, or given in a call."""

    def __init__(
        self,
        inC: int,
        outC: int,
        batch: int,
        profile: bool = False,
        device: Any = None,
        *,
        bias: bool = False,
    ) -> None:
        """Says the sizes, as `MatMul` does, and whether there is a bias."""
        super().__init__((inC, outC, batch), bias=bias, profile=profile, device=device)
        self._has_bias = bool(bias)

    def set_weights(self, W: Array, bias: Array | None = None) -> None:
        """Makes weights constants of the program; later changes of the arrays are not seen.

        Args:
            W: (outC, inC), float16 or float32.
            bias: (outC,), of W's dtype, where the operator has one.

        Raises:
            OperatorInputError: a shape or dtype is another (code ``operator-input``).
        """
        self._set(None, self._given(W, bias))

    def run(
        self,
        X: Array,
        W: Array | None = None,
        op_id: Hashable = None,
        *,
        bias: Array | None = None,
    ) -> Array:
        """Multiplies.

        Args:
            X: (batch, inC), of the weights' dtype.
            W: (outC, inC), float16 or float32; without it those that were set are used.
            op_id: name under which W is kept as a constant: a later call with the same name needs
                no W, or passes the same array again. Another array replaces it.
            bias: (outC,), with W, where the operator has one.

        Returns:
            (batch, outC), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype is another (code ``operator-input``), or there are
                no weights (code ``operator-weights``).
        """
        return self._run(X, self._given(W, bias), op_id)

    def _given(self, w: Any, bias: Any) -> tuple[Any, ...]:
        return (w, bias) if self._has_bias or bias is not None else (w,)


class QLinear(_QuantizedProduct):
    """`X * (W * scale)^T` with quantized weights that are set once, or given in a call."""

    def set_weights(self, W: Array, scale: Array) -> None:
        """Makes weights constants of the program; later changes of the arrays are not seen.

        Args:
            W: as in `QMatMul.run`.
            scale: (outC, 1), float16 or float32.

        Raises:
            OperatorInputError: a shape or dtype is another (code ``operator-input``).
        """
        self._set(None, (W, scale))

    def run(
        self,
        X: Array,
        W: Array | None = None,
        scale: Array | None = None,
        op_id: Hashable = None,
    ) -> Array:
        """Multiplies.

        Args:
            X: (batch, inC), of the scale's dtype.
            W: as in `QMatMul.run`; without it those that were set are used.
            scale: (outC, 1), float16 or float32.
            op_id: name under which W and scale are kept, as in `Linear.run`.

        Returns:
            (batch, outC), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype is another (code ``operator-input``), or there are
                no weights (code ``operator-weights``).
        """
        return self._run(X, (W, scale), op_id)


def _integers(subject: str, dtype: Any) -> np.dtype[Any]:
    integers: np.dtype[Any]
    try:
        integers = np.dtype(dtype)
    except (TypeError, ValueError):
        integers = np.dtype(object)
    if integers not in (np.dtype(np.int8), PACKED):
        raise OperatorInputError(
            f"{subject}: dtype must be int8, or uint8 for two 4-bit numbers in a byte; "
            f"got {dtype!r}.",
            code="operator-input",
        )
    return integers

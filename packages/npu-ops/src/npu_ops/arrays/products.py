"""Matrix products `X * W^T` on numpy arrays, with float or quantized weights.

Weights are constants of a program, or inputs of each call.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
from numpy.typing import DTypeLike

import npu_runtime
from npu_ops.arrays.operator import FLOATS, Array, ArrayOperator, array_of, size_of
from npu_ops.errors import OperatorInputError

__all__ = ["PACKED", "Linear", "MatMul", "QLinear", "QMatMul", "Slot", "WeightedOperator"]


# Two 4-bit integers in a byte, the first in the low half; two's complement, as OpenVINO's i4.
PACKED = np.dtype(np.uint8)


@dataclass(frozen=True)
class Slot:
    """One weight of an operator.

    Attributes:
        name: its name in the user's calls.
        shape: of the array that is passed.
        integers: None for an array of X's dtype; else int8, or uint8 for packed 4-bit numbers,
            twice as many along the last axis.
    """

    name: str
    shape: tuple[int, ...]
    integers: np.dtype[Any] | None = None


@dataclass(frozen=True)
class _Kept:
    """Weights that are constants of a program: the arrays as given, their dtype, the program."""

    given: tuple[Any, ...]
    dtype: np.dtype[Any]
    program: npu_runtime.Program


class WeightedOperator(ArrayOperator):
    """An operator with weights; subclasses define the weights and the computation."""

    def __init__(
        self, input_shape: tuple[int, ...], slots: Sequence[Slot], *, profile: bool, device: Any
    ) -> None:
        super().__init__(profile=profile, device=device)
        self._input_shape = input_shape
        self._slots = tuple(slots)
        self._kept: dict[Hashable, _Kept] = {}

    def _compute(self, x: ov.Output, *weights: ov.Output) -> ov.Output:
        """Builds the nodes from X and the weights to the result, all in float32."""
        raise NotImplementedError

    def _set(self, name: Hashable, given: tuple[Any, ...]) -> _Kept:
        weights, dtype = self._check(given)
        program = self._load(self._model(dtype, weights))
        self._kept[name] = kept = _Kept(given, dtype, program)
        return kept

    def _run(self, x: Any, given: tuple[Any, ...], name: Hashable = None) -> Array:
        """Runs with the given or the set weights; keeps the given ones if there is a name."""
        is_given = any(weight is not None for weight in given)
        if is_given and name is None:
            weights, dtype = self._check(given)
            array = array_of(self._subject, "X", x, self._input_shape, [dtype])
            program = self._program(dtype, lambda: self._model(dtype, None))
            return self._execute(program, [array, *weights])
        kept = self._kept.get(name)
        if is_given and (kept is None or any(map(_differ, given, kept.given))):
            kept = self._set(name, given)
        if kept is None:
            where = "" if name is None else f" under op_id {name!r}"
            raise OperatorInputError(
                f"{self._subject}: weights must be set or given{where}. Pass them to run, or set "
                f"them once "
                "with set_weights.",
                code="operator-weights",
            )
        array = array_of(self._subject, "X", x, self._input_shape, [kept.dtype])
        return self._execute(kept.program, [array])

    def _check(self, given: tuple[Any, ...]) -> tuple[list[Array], np.dtype[Any]]:
        """Returns the weights, contiguous, and the dtype that X must have."""
        if len(given) != len(self._slots):
            names = ", ".join(slot.name for slot in self._slots)
            raise OperatorInputError(
                f"{self._subject}: weights must be {names}, got {len(given)}.",
                code="operator-input",
            )
        dtypes: Sequence[np.dtype[Any]] = FLOATS
        weights = []
        for slot, weight in zip(self._slots, given, strict=True):
            allowed = dtypes if slot.integers is None else [slot.integers]
            weights.append(array_of(self._subject, slot.name, weight, slot.shape, allowed))
            if slot.integers is None:
                dtypes = [weights[-1].dtype]
        return weights, dtypes[0]

    def _model(self, dtype: np.dtype[Any], constants: Sequence[Array] | None) -> ov.Model:
        x = ops.parameter(self._input_shape, dtype)
        parameters, values = [x], []
        for index, slot in enumerate(self._slots):
            if constants is not None:
                values.append(_constant(slot, constants[index]))
                continue
            parameter = ops.parameter(slot.shape, slot.integers or dtype)
            parameters.append(parameter)
            values.append(_unpacked(parameter) if slot.integers == PACKED else parameter)
        single = [ops.convert(value, ov.Type.f32).output(0) for value in (x, *values)]
        return ov.Model([ops.convert(self._compute(*single), dtype)], parameters)


def _differ(first: Any, second: Any) -> bool:
    return first is not second


def _constant(slot: Slot, array: Array) -> Any:
    if slot.integers != PACKED:
        return ops.constant(array)
    shape = ov.Shape([*slot.shape[:-1], 2 * slot.shape[-1]])
    return ov.op.Constant(ov.Tensor(array, shape, ov.Type.i4), shared_memory=False)


def _unpacked(packed: Any) -> Any:
    """Converts an input's 4-bit numbers to float32: programs take no 4-bit inputs."""
    byte = ops.convert(packed, ov.Type.f32)
    high = ops.floor(ops.multiply(byte, ops.constant(np.float32(1 / 16))))
    low = ops.subtract(byte, ops.multiply(high, ops.constant(np.float32(16))))
    pairs = ops.concat([ops.unsqueeze(half, ops.constant(-1)) for half in (low, high)], -1)
    shape = packed.get_output_shape(0)
    flat = ops.reshape(pairs, ops.constant([*shape[:-1], 2 * shape[-1]]), False)
    is_negative = ops.greater_equal(flat, ops.constant(np.float32(8)))
    offset = ops.multiply(ops.convert(is_negative, ov.Type.f32), ops.constant(np.float32(16)))
    return ops.subtract(flat, offset)


class _Product(WeightedOperator):
    """`X * W^T`, plus an optional bias."""

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
                    f"{subject}: inC must be even where two 4-bit weights share a byte, "
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
            # Scale the weight, not the product: otherwise the device would not find an integer
            # matmul.
            w = ops.multiply(w, rest.pop(0)).output(0)
        result = ops.matmul(x, w, False, True).output(0)
        return ops.add(result, rest[0]).output(0) if rest else result


class _QuantizedProduct(_Product):
    """`X * (W * scale)^T`, with one or two integers of W per byte."""

    def __init__(
        self,
        inC: int,
        outC: int,
        batch: int,
        profile: bool = False,
        device: Any = None,
        dtype: DTypeLike = np.int8,
    ) -> None:
        """Sets the sizes.

        Args:
            inC: columns of X and W.
            outC: rows of W, columns of the result.
            batch: rows of X and of the result.
            profile: whether to record the times in `layers`.
            device: "npu", "npu:0", or the vendor's name of the device in use.
            dtype: of W: int8, or uint8 for two 4-bit numbers in a byte.

        Raises:
            OperatorInputError: a size or dtype is invalid (code ``operator-input``); the process
                uses another device (code ``operator-device``).
        """
        integers = _integers(f"npu_ops.{type(self).__name__}", dtype)
        super().__init__((inC, outC, batch), integers=integers, profile=profile, device=device)


class MatMul(_Product):
    """`X * W^T`, with the weights passed in each call."""

    def __init__(
        self, inC: int, outC: int, batch: int, profile: bool = False, device: Any = None
    ) -> None:
        """Sets the sizes.

        Args:
            inC: columns of X and W.
            outC: rows of W, columns of the result.
            batch: rows of X and of the result.
            profile: whether to record the times in `layers`.
            device: "npu", "npu:0", or the vendor's name of the device in use.

        Raises:
            OperatorInputError: a size is not positive (code ``operator-input``); the process uses
                another device (code ``operator-device``).
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
            OperatorInputError: a shape or dtype does not match (code ``operator-input``).
        """
        return self._run(X, (W,))


class QMatMul(_QuantizedProduct):
    """`X * (W * scale)^T` with quantized weights passed in each call."""

    def run(self, X: Array, W: Array, scale: Array) -> Array:
        """Multiplies.

        Args:
            X: (batch, inC), float16 or float32.
            W: (outC, inC) int8; or (outC, inC / 2) uint8, the first of two 4-bit numbers in the
                low half of a byte, both in two's complement.
            scale: (outC, 1), of X's dtype: the size of one integer step in each row.

        Returns:
            (batch, outC), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``).
        """
        return self._run(X, (W, scale))


class Linear(_Product):
    """`X * W^T + bias`, with weights set once or passed in a call."""

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
        """Sets the sizes, as `MatMul` does, and whether there is a bias."""
        super().__init__((inC, outC, batch), bias=bias, profile=profile, device=device)
        self._has_bias = bool(bias)

    def set_weights(self, W: Array, bias: Array | None = None) -> None:
        """Makes the weights constants of the program; later changes to the arrays have no effect.

        Args:
            W: (outC, inC), float16 or float32.
            bias: (outC,), of W's dtype, if the operator has a bias.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``).
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
            W: (outC, inC), float16 or float32; by default, the weights from `set_weights`.
            op_id: name under which W is kept as a constant: a later call with the same name needs
                no W, or passes the same array again. Another array replaces it.
            bias: (outC,), with W, if the operator has a bias.

        Returns:
            (batch, outC), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``), or there
                are no weights (code ``operator-weights``).
        """
        return self._run(X, self._given(W, bias), op_id)

    def _given(self, w: Any, bias: Any) -> tuple[Any, ...]:
        return (w, bias) if self._has_bias or bias is not None else (w,)


class QLinear(_QuantizedProduct):
    """`X * (W * scale)^T` with quantized weights set once or passed in a call."""

    def set_weights(self, W: Array, scale: Array) -> None:
        """Makes the weights constants of the program; later changes to the arrays have no effect.

        Args:
            W: as in `QMatMul.run`.
            scale: (outC, 1), float16 or float32.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``).
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
            W: as in `QMatMul.run`; by default, the weights from `set_weights`.
            scale: (outC, 1), float16 or float32.
            op_id: name under which W and scale are kept, as in `Linear.run`.

        Returns:
            (batch, outC), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``), or there
                are no weights (code ``operator-weights``).
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
            f"{subject}: `dtype` must be int8, or uint8 for two 4-bit numbers in a byte, "
            f"got {dtype!r}.",
            code="operator-input",
        )
    return integers

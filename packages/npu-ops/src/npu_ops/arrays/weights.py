"""Operators with weights: set once as constants of a program, or given in each call as inputs.

What is computed from them is in the families' own files.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

import npu_runtime
from npu_ops.arrays.arguments import FLOATS, Array, array_of
from npu_ops.arrays.operator import ArrayOperator
from npu_ops.errors import OperatorInputError

__all__ = ["PACKED", "Slot", "WeightedOperator"]

# Two 4-bit integers in a byte, the first in the low half; two's complement, as OpenVINO's i4.
PACKED = np.dtype(np.uint8)


@dataclass(frozen=True)
class Slot:
    """One weight of an operator.

    Attributes:
        name: as the user calls it.
        shape: of the array that is passed.
        integers: None for an array of X's dtype; else int8, or uint8 for packed 4-bit numbers,
            of which there are twice as many along the last axis.
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
    """An operator with weights; a family says which, and what is computed from them."""

    def __init__(
        self, input_shape: tuple[int, ...], slots: Sequence[Slot], *, profile: bool, device: Any
    ) -> None:
        super().__init__(profile=profile, device=device)
        self._input_shape = input_shape
        self._slots = tuple(slots)
        self._kept: dict[Hashable, _Kept] = {}

    def _compute(self, x: ov.Output, *weights: ov.Output) -> ov.Output:
        """The nodes from X and the weights to the result, all in float32."""
        raise NotImplementedError

    def _set(self, name: Hashable, given: tuple[Any, ...]) -> _Kept:
        weights, dtype = self._check(given)
        program = self._load(self._model(dtype, weights))
        self._kept[name] = kept = _Kept(given, dtype, program)
        return kept

    def _run(self, x: Any, given: tuple[Any, ...], name: Hashable = None) -> Array:
        """Runs with weights that are given, or were set; under a name the given ones are kept."""
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
                f"{self._subject}: it has no weights{where}. Pass them to run, or set them once "
                "with set_weights.",
                code="operator-weights",
            )
        array = array_of(self._subject, "X", x, self._input_shape, [kept.dtype])
        return self._execute(kept.program, [array])

    def _check(self, given: tuple[Any, ...]) -> tuple[list[Array], np.dtype[Any]]:
        """The weights, contiguous, and the dtype that they ask of X."""
        if len(given) != len(self._slots):
            names = ", ".join(slot.name for slot in self._slots)
            raise OperatorInputError(
                f"{self._subject}: its weights are {names}; got {len(given)} of them.",
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
    """The 4-bit numbers of an input as float32: a program has no inputs of 4 bits."""
    byte = ops.convert(packed, ov.Type.f32)
    high = ops.floor(ops.multiply(byte, ops.constant(np.float32(1 / 16))))
    low = ops.subtract(byte, ops.multiply(high, ops.constant(np.float32(16))))
    pairs = ops.concat([ops.unsqueeze(half, ops.constant(-1)) for half in (low, high)], -1)
    shape = packed.get_output_shape(0)
    flat = ops.reshape(pairs, ops.constant([*shape[:-1], 2 * shape[-1]]), False)
    is_negative = ops.greater_equal(flat, ops.constant(np.float32(8)))
    offset = ops.multiply(ops.convert(is_negative, ov.Type.f32), ops.constant(np.float32(16)))
    return ops.subtract(flat, offset)

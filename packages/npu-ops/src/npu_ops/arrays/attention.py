"""Scaled dot-product attention on numpy arrays.

`softmax(Q * K^T / sqrt(d) + mask) * V`, from "Attention Is All You Need" (Vaswani et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_ops.arrays.operator import FLOATS, Array, ArrayOperator, array_of, shape_of
from npu_ops.errors import OperatorInputError

__all__ = ["SDPA", "SimpleSDPA"]

_BOOL = np.dtype(np.bool_)


class _Attention(ArrayOperator):
    def __init__(
        self,
        shapes: tuple[Any, Any, Any],
        mask_shape: Any,
        *,
        is_causal: bool,
        profile: bool,
        device: Any,
    ) -> None:
        subject = f"npu_ops.{type(self).__name__}"
        names = ("query_shapes", "key_shapes", "value_shapes")
        query, key, value = (
            shape_of(subject, name, shape, ranks=(3, 4))
            for name, shape in zip(names, shapes, strict=True)
        )
        is_fitting = query[:-2] == key[:-2] == value[:-2] and query[-1] == key[-1]
        if not is_fitting or key[-2] != value[-2]:
            raise OperatorInputError(
                f"{subject}: query must be (..., queries, d), key (..., keys, d) and value "
                f"(..., keys, dv), with the same batch and heads, got {query}, {key}, {value}.",
                code="operator-input",
            )
        scores = (*query[:-1], key[-2])
        self._shapes = (query, key, value)
        self._mask_shape: tuple[int, ...] | None = None
        if mask_shape is not None:
            ranks = tuple(range(2, len(scores) + 1))
            self._mask_shape = shape_of(subject, "mask_shapes", mask_shape, ranks=ranks)
            pairs = zip(reversed(self._mask_shape), reversed(scores), strict=False)
            if any(size not in (1, wanted) for size, wanted in pairs):
                raise OperatorInputError(
                    f"{subject}: `mask_shapes` must broadcast to the scores, {scores}, "
                    f"got {self._mask_shape}.",
                    code="operator-input",
                )
        self._is_causal = bool(is_causal)
        super().__init__(profile=profile, device=device)

    def _attend(self, query: Any, key: Any, value: Any, mask: Any) -> Array:
        q = array_of(self._subject, "query", query, self._shapes[0], FLOATS)
        arrays = [q]
        for name, given, shape in zip(
            ("key", "value"), (key, value), self._shapes[1:], strict=True
        ):
            arrays.append(array_of(self._subject, name, given, shape, [q.dtype]))
        kind = None
        if self._mask_shape is not None:
            allowed = [q.dtype, _BOOL]
            arrays.append(array_of(self._subject, "mask", mask, self._mask_shape, allowed))
            kind = arrays[-1].dtype
        program = self._program((q.dtype, kind), lambda: self._model(q.dtype, kind))
        return self._execute(program, arrays)

    def _model(self, dtype: np.dtype[Any], mask_dtype: np.dtype[Any] | None) -> ov.Model:
        parameters = [ops.parameter(shape, dtype) for shape in self._shapes]
        single = [ops.convert(parameter, ov.Type.f32) for parameter in parameters]
        mask = None
        if mask_dtype is not None and self._mask_shape is not None:
            parameters.append(ops.parameter(self._mask_shape, mask_dtype))
            mask = parameters[-1]
            if mask_dtype == _BOOL:
                mask = ops.select(mask, _single(0), _single(-np.inf))
            mask = ops.convert(mask, ov.Type.f32)
            if self._is_causal:
                # OpenVINO ignores the mask when its causal flag is set.
                mask = ops.add(mask, _single(self._causal_mask()))
        is_causal = self._is_causal and mask is None
        attention = ops.scaled_dot_product_attention(*single, mask, causal=is_causal)
        return ov.Model([ops.convert(attention, dtype)], parameters)

    def _causal_mask(self) -> Array:
        queries, keys = self._shapes[0][-2], self._shapes[1][-2]
        sees = np.tri(queries, keys, dtype=np.bool_)
        return np.where(sees, np.float32(0), np.float32(-np.inf))


class SDPA(_Attention):
    """Attention with a mask."""

    def __init__(
        self,
        query_shapes: Sequence[int],
        key_shapes: Sequence[int],
        value_shapes: Sequence[int],
        mask_shapes: Sequence[int],
        is_causal: bool = False,
        profile: bool = False,
        device: Any = None,
    ) -> None:
        """Sets the shapes.

        Args:
            query_shapes: (batch, heads, queries, d), or without heads.
            key_shapes: (batch, heads, keys, d).
            value_shapes: (batch, heads, keys, dv).
            mask_shapes: a shape that broadcasts to (batch, heads, queries, keys).
            is_causal: whether query i sees only keys 0 to i, in addition to the mask.
            profile: whether to record the times in `layers`.
            device: "npu", "npu:0", or the vendor's name of the device in use.

        Raises:
            OperatorInputError: the shapes do not match (code ``operator-input``); the process uses
                another device (code ``operator-device``).
        """
        super().__init__(
            (query_shapes, key_shapes, value_shapes),
            () if mask_shapes is None else mask_shapes,
            is_causal=is_causal,
            profile=profile,
            device=device,
        )

    def run(self, query: Array, key: Array, value: Array, mask: Array) -> Array:
        """Computes attention.

        Args:
            query: float16 or float32.
            key: of the query's dtype.
            value: of the query's dtype.
            mask: of the query's dtype, added to the scores; or bool, True where a query sees a key.

        Returns:
            (batch, heads, queries, dv), of the query's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``).
        """
        return self._attend(query, key, value, mask)


class SimpleSDPA(_Attention):
    """Attention without a mask."""

    def __init__(
        self,
        query_shapes: Sequence[int],
        key_shapes: Sequence[int],
        value_shapes: Sequence[int],
        is_causal: bool = False,
        profile: bool = False,
        device: Any = None,
    ) -> None:
        """Sets the shapes.

        Args:
            query_shapes: (batch, heads, queries, d), or without heads.
            key_shapes: (batch, heads, keys, d).
            value_shapes: (batch, heads, keys, dv).
            is_causal: whether query i sees only keys 0 to i.
            profile: whether to record the times in `layers`.
            device: "npu", "npu:0", or the vendor's name of the device in use.

        Raises:
            OperatorInputError: the shapes do not match (code ``operator-input``); the process uses
                another device (code ``operator-device``).
        """
        super().__init__(
            (query_shapes, key_shapes, value_shapes),
            None,
            is_causal=is_causal,
            profile=profile,
            device=device,
        )

    def run(self, query: Array, key: Array, value: Array) -> Array:
        """Computes attention.

        Args:
            query: float16 or float32.
            key: of the query's dtype.
            value: of the query's dtype.

        Returns:
            (batch, heads, queries, dv), of the query's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``).
        """
        return self._attend(query, key, value, None)


def _single(value: Any) -> Any:
    return ops.constant(np.asarray(value, dtype=np.float32))

"""A multi-layer perceptron on numpy arrays: up, an activation, and down again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_ops.arrays.operator import Array, shape_of, size_of
from npu_ops.arrays.products import Slot, WeightedOperator
from npu_ops.errors import OperatorInputError

__all__ = ["ACTIVATIONS", "MLP"]

# Name -> function of a node and the activation's parameters, and their defaults.
_Activation = tuple[Callable[..., Any], dict[str, float | None]]


def _number(value: float) -> Any:
    return ops.constant(np.float32(value))


def _grn(x: Any, grn_bias: float) -> Any:
    """Each row divided by `sqrt(sum of its squares + grn_bias)`, OpenVINO's GRN-1."""
    squares = ops.reduce_sum(ops.multiply(x, x), ops.constant([1]), True)
    return ops.divide(x, ops.sqrt(ops.add(squares, _number(grn_bias))))


_TABLE: dict[str, _Activation] = {
    "ceiling": (ops.ceiling, {}),
    "clamp": (ops.clamp, {"min": None, "max": None}),
    "elu": (ops.elu, {"alpha": 1.0}),
    "gelu": (lambda x: ops.gelu(x, "erf"), {}),
    "grn": (_grn, {"grn_bias": None}),
    "hsigmoid": (ops.hsigmoid, {}),
    "hswish": (ops.hswish, {}),
    "mish": (ops.mish, {}),
    "negative": (ops.negative, {}),
    "relu": (ops.relu, {}),
    "sigmoid": (ops.sigmoid, {}),
    "softplus": (ops.softplus, {}),
    "swiglu": (ops.swish, {}),
    "swish": (ops.swish, {}),
    "tanh": (ops.tanh, {}),
}
ACTIVATIONS = tuple(_TABLE)


class MLP(WeightedOperator):
    """`activation(X * W1^T) * W2^T`; with swiglu `(swish(X * W1^T) . (X * V^T)) * W2^T`."""

    def __init__(
        self,
        input_shape: Sequence[int],
        intermediate_size: int,
        activation: str = "swiglu",
        bias: bool = False,
        profile: bool = False,
        device: Any = None,
        **numbers: float,
    ) -> None:
        """Sets the sizes.

        Args:
            input_shape: of X and of the result, (batch, hidden).
            intermediate_size: columns between the two products.
            activation: ceiling, clamp, elu, gelu, grn, hsigmoid, hswish, mish, negative, relu,
                sigmoid, softplus, swiglu, swish or tanh.
            bias: whether to add a bias to each product.
            profile: whether to record the times in `layers`.
            device: "npu", "npu:0", or the vendor's name of the device in use.
            numbers: the activation's parameters: `min` and `max` of clamp, `alpha` of elu (by
                default 1), `grn_bias` of grn.

        Raises:
            OperatorInputError: a size, the activation or a parameter is invalid (code
                ``operator-input``); the process uses another device (code ``operator-device``).
        """
        subject = "npu_ops.MLP"
        shape = shape_of(subject, "input_shape", input_shape, ranks=(2,))
        hidden = shape[1]
        middle = size_of(subject, "intermediate_size", intermediate_size)
        self._activation = _activation(subject, activation, numbers)
        self._is_gated, self._has_bias = activation == "swiglu", bool(bias)
        names = {"W1": (middle, hidden), "V": (middle, hidden), "W2": (hidden, middle)}
        if not self._is_gated:
            del names["V"]
        slots = []
        for name, sizes in names.items():
            slots.append(Slot(name, sizes))
            if bias:
                slots.append(Slot(f"bias of {name}", (sizes[0],)))
        super().__init__(shape, slots, profile=profile, device=device)

    def set_weights(self, *weights: Array) -> None:
        """Makes the weights constants of the program; later changes to the arrays have no effect.

        Args:
            weights: W1 (intermediate, hidden), with swiglu V of the same shape, and W2 (hidden,
                intermediate), float16 or float32; each followed by its bias (one element per row)
                if the operator has biases.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``).
        """
        self._set(None, weights)

    def run(self, X: Array, *weights: Array) -> Array:
        """Runs the layers.

        Args:
            X: (batch, hidden), of the weights' dtype.
            weights: as in `set_weights`; by default, the weights from `set_weights`.

        Returns:
            (batch, hidden), of X's dtype, computed in float32.

        Raises:
            OperatorInputError: a shape or dtype does not match (code ``operator-input``), or there
                are no weights (code ``operator-weights``).
        """
        return self._run(X, weights)

    def _compute(self, x: ov.Output, *weights: ov.Output) -> ov.Output:
        rest = list(weights)

        def product(value: Any) -> Any:
            result = ops.matmul(value, rest.pop(0), False, True)
            return ops.add(result, rest.pop(0)) if self._has_bias else result

        middle = self._activation(product(x))
        if self._is_gated:
            middle = ops.multiply(middle, product(x))
        return product(middle).output(0)


def _activation(subject: str, name: str, numbers: dict[str, float]) -> Callable[[Any], Any]:
    if name not in _TABLE:
        raise OperatorInputError(
            f"{subject}: `activation` must be one of {', '.join(ACTIVATIONS)}, got {name!r}.",
            code="operator-input",
        )
    function, defaults = _TABLE[name]
    merged = {**defaults, **numbers}  # keeps the table's order
    is_complete = all(isinstance(value, (int, float)) for value in merged.values())
    if set(merged) != set(defaults) or not is_complete:
        raise OperatorInputError(
            f"{subject}: {name} must get {', '.join(defaults) or 'no numbers'}, got "
            f"{numbers or 'none'}.",
            code="operator-input",
        )
    values: list[Any] = list(merged.values())
    if name == "clamp" and not values[0] <= values[1]:
        raise OperatorInputError(
            f"{subject}: `min` of clamp must be at most `max`, got {values[0]} and {values[1]}.",
            code="operator-input",
        )
    return lambda x: function(x, *values)

"""Operators as graphs in float16: products, an MLP, a convolution and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory
from npu_llm.compat.intel_npu_acceleration_library.dtypes import warn_once
from npu_llm.errors import OptionError

__all__ = ["MLP", "SDPA", "Convolution", "Linear", "MatMul", "QLinear", "QMatMul", "SimpleSDPA"]

Array = np.ndarray[Any, Any]


class MatMul(NNFactory):
    """X @ W.T, in float16."""

    def __init__(
        self, inC: int, outC: int, batch: int, profile: bool = False, device: str = "NPU"
    ) -> None:
        """Builds the graph.

        Args:
            inC: columns of X and W.
            outC: rows of W.
            batch: rows of X.
            profile: see NNFactory.
            device: see NNFactory.
        """
        super().__init__(profile, device)
        self.inC, self.outC, self.batch = inC, outC, batch
        self.linear(self.parameter((batch, inC)), outC, inC)


class Linear(MatMul):
    """MatMul with weights cached under a name."""

    def run(self, X: Array, W: Array, op_id: str | None = None) -> Any:
        """Multiplies.

        Args:
            X: (batch, inC).
            W: (outC, inC).
            op_id: a name for the weights.
        """
        return super().run(X, W, op_id=op_id)


class QMatMul(NNFactory):
    """X @ (W * scale / sqrt(inC)).T, in float16."""

    def __init__(
        self,
        inC: int,
        outC: int,
        batch: int,
        profile: bool = False,
        device: str = "NPU",
        dtype: Any = np.int8,
    ) -> None:
        """Builds the graph.

        Args:
            inC: columns of X and W.
            outC: rows of W.
            batch: rows of X.
            profile: see NNFactory.
            device: see NNFactory.
            dtype: dtype of W: int8, or uint8 for two 4-bit values per byte.
        """
        super().__init__(profile, device)
        self.inC, self.outC, self.batch = inC, outC, batch
        self._linear(self.parameter((batch, inC)), (outC, inC), False, np.float16, dtype)

    def run(self, X: Array, W: Array, scale: Array) -> Any:
        """Multiplies.

        Args:
            X: (batch, inC).
            W: (outC, inC), or (outC, inC / 2) bytes.
            scale: (outC, 1), multiplied by sqrt(inC).
        """
        warn_once("scale-root")
        return super().run(X, W, scale)


class QLinear(QMatMul):
    """QMatMul with weights cached under a name."""

    def run(self, X: Array, W: Array, scale: Array, op_id: str | None = None) -> Any:
        """Multiplies like QMatMul; op_id is a name for the weights."""
        warn_once("scale-root")
        return NNFactory.run(self, X, W, scale, op_id=op_id)


# Activations, and the names of their parameters in MLP's arguments.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "clamp": ("min", "max"),
    "elu": ("alpha",),
    "grn": ("grn_bias",),
} | dict.fromkeys(
    (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceiling", "cos", "cosh", "erf",
        "exp", "floor", "gelu", "gelu_erf", "hsigmoid", "hswish", "log", "mish", "negative",
        "relu", "round", "sigmoid", "sign", "sin", "sinh", "softplus", "softsign", "sqrt",
        "swiglu", "swish", "tan", "tanh",
    ),
    (),
)  # fmt: skip


class MLP(NNFactory):
    """A feed-forward block with one wider layer, or two for swiglu."""

    def __init__(
        self,
        input_shape: Sequence[int],
        intermediate_size: int,
        activation: str = "swiglu",
        bias: bool = False,
        profile: bool = False,
        device: str = "NPU",
        **additional_args: Any,
    ) -> None:
        """Builds the graph.

        Args:
            input_shape: (batch, channels).
            intermediate_size: width of the wider layer.
            activation: name of a unary call, or swiglu.
            bias: whether the layers have biases.
            profile: see NNFactory.
            device: see NNFactory.
            additional_args: min and max for clamp, alpha for elu, grn_bias for grn.

        Raises:
            OptionError: [compat-activation] for another activation, or clamp without limits;
                [graph-array] for another shape.
        """
        super().__init__(profile, device)
        if activation not in _ACTIVATIONS:
            raise OptionError(
                f"MLP: `activation` must be one of {', '.join(sorted(_ACTIVATIONS))}, got "
                f"{activation!r}. Build others with NNFactory.",
                code="compat-activation",
            )
        numbers = [additional_args.get(name) for name in _ACTIVATIONS[activation]]
        if activation == "clamp" and numbers == [None, None]:
            raise OptionError(
                "MLP: clamp must have min or max, got neither. Pass one.", code="compat-activation"
            )
        rows = self.parameter(input_shape)
        if rows.dim() != 2:
            raise OptionError(
                f"MLP: `input_shape` must be (batch, channels), got {tuple(input_shape)}. Reshape "
                "the input to rows.",
                code="graph-array",
            )
        self.batch, self.hidden_size = rows.shape
        self.intermediate_size = intermediate_size
        wide = self.linear(rows, intermediate_size, self.hidden_size, bias)
        if activation == "swiglu":
            second = self.linear(rows, intermediate_size, self.hidden_size, bias)
            wide = self.eltwise_mul(self.swish(wide), second)
        else:
            given = numbers if activation == "clamp" else [x for x in numbers if x is not None]
            wide = getattr(self, activation)(wide, *given)
        self.linear(wide, self.hidden_size, intermediate_size, bias)


class Convolution(NNFactory):
    """A convolution of one input with its weights and an optional bias."""

    def __init__(
        self,
        input_shape: Sequence[int],
        weights_shape: Sequence[int],
        bias: Any = False,
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        profile: bool = False,
        device: str = "NPU",
    ) -> None:
        """Builds the graph.

        Args:
            input_shape: (batch, channels, ...).
            weights_shape: (outputs, inputs / groups, ...), or with the groups as an additional
                first axis.
            bias: whether a third input is a bias per output.
            strides: one for all dimensions, or one for each.
            padding: one for all dimensions, or one for each.
            dilation: one for all dimensions, or one for each.
            groups: number of independent channel groups.
            profile: see NNFactory.
            device: see NNFactory.
        """
        super().__init__(profile, device)
        rows, weights = self.parameter(input_shape), self.parameter(weights_shape)
        is_grouped = len(weights_shape) > len(input_shape)
        outputs = weights_shape[0] * (weights_shape[1] if is_grouped else 1)
        offset = self.parameter((outputs,)) if bias else None
        self.convolution(rows, weights, offset, strides, padding, dilation, groups)


class SDPA(NNFactory):
    """Attention with a mask, which is_causal ignores."""

    def __init__(
        self,
        query_shapes: Sequence[int],
        key_shapes: Sequence[int],
        value_shapes: Sequence[int],
        mask_shapes: Sequence[int] | None,
        is_causal: bool = False,
        profile: bool = False,
        device: str = "NPU",
    ) -> None:
        """Builds the graph.

        Args:
            query_shapes: (batch, heads, queries, d).
            key_shapes: (batch, heads, keys, d).
            value_shapes: (batch, heads, keys, dv).
            mask_shapes: a shape that broadcasts to (batch, heads, queries, keys); the mask is added
                to the scores; None for no mask.
            is_causal: whether query i attends to keys 0 to i only.
            profile: see NNFactory.
            device: see NNFactory.
        """
        super().__init__(profile, device)
        self.query, self.key, self.value = map(
            self.parameter, (query_shapes, key_shapes, value_shapes)
        )
        self.mask = None if mask_shapes is None else self.parameter(mask_shapes)
        self.scaled_dot_product_attention(self.query, self.key, self.value, self.mask, is_causal)


class SimpleSDPA(SDPA):
    """Attention without a mask."""

    def __init__(
        self,
        query_shapes: Sequence[int],
        key_shapes: Sequence[int],
        value_shapes: Sequence[int],
        is_causal: bool = False,
        profile: bool = False,
        device: str = "NPU",
    ) -> None:
        """Builds the graph; the arguments are SDPA's."""
        super().__init__(query_shapes, key_shapes, value_shapes, None, is_causal, profile, device)

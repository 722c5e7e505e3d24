"""Two linear layers with an activation between them, in float16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory
from npu_llm.errors import OptionError

__all__ = ["MLP"]

# Activations, and the names that their numbers have among MLP's arguments.
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
    """Rows through a wider layer and back; swiglu has a second wider layer."""

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
            intermediate_size: of the wider layer.
            activation: the name of a call of one tensor, or swiglu.
            bias: whether the layers have one.
            profile: as for NNFactory.
            device: as for NNFactory.
            additional_args: min and max for clamp, alpha for elu, grn_bias for grn.

        Raises:
            OptionError: [compat-activation] for another activation, or clamp without
                numbers; [graph-array] for another shape.
        """
        super().__init__(profile, device)
        if activation not in _ACTIVATIONS:
            raise OptionError(
                f"MLP: activation must be one of {', '.join(sorted(_ACTIVATIONS))}; got "
                f"{activation!r}. Build others with NNFactory.",
                code="compat-activation",
            )
        numbers = [additional_args.get(name) for name in _ACTIVATIONS[activation]]
        if activation == "clamp" and numbers == [None, None]:
            raise OptionError(
                "MLP: clamp must have min or max; got neither. Pass one.", code="compat-activation"
            )
        rows = self.parameter(input_shape)
        if rows.dim() != 2:
            raise OptionError(
                f"MLP: input_shape must be (batch, channels); got {tuple(input_shape)}. Reshape "
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

"""Functions on a graph's tensors: torch's functions, which support these tensors."""

from typing import Any

import torch

_OF_TORCH = (
    "abs", "acos", "acosh", "add", "addmm", "asin", "asinh", "atan", "atanh", "cat", "ceil",
    "clamp", "cos", "cosh", "div", "erf", "exp", "flatten", "floor", "log", "max", "mean",
    "min", "mul", "neg", "pow", "prod", "round", "sign", "sin", "sinh", "sqrt", "sub", "sum",
    "tan", "tanh", "unsqueeze",
)  # fmt: skip
_OF_LAYERS = (
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "batch_norm", "conv2d",
    "dropout", "elu", "gelu", "hardsigmoid", "hardswish", "layer_norm", "linear", "log_softmax",
    "max_pool2d", "mish", "normalize", "prelu", "relu", "scaled_dot_product_attention",
    "sigmoid", "silu", "softmax", "softplus",
)  # fmt: skip

__all__ = [*_OF_TORCH, *_OF_LAYERS]  # noqa: PLE0604  # all are texts


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(torch if name in _OF_TORCH else torch.nn.functional, name)

"""quantize_model: the linear layers of a module replaced by ones that hold integers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from npu_compiler.errors import OptionError
from npu_compiler.nn.quantized_linear import QuantizedLinear
from npu_compiler.quantize.weights import GROUP_SIZES, MODES
from npu_runtime.public_calls import public_call

__all__ = ["quantize_model"]


@public_call
def quantize_model(
    model: nn.Module,
    dtype: torch.dtype | str,
    *,
    group_size: int = 64,
    symmetric: bool = True,
    skip: Callable[[str, nn.Linear], bool] | None = None,
) -> nn.Module:
    """Replaces each torch.nn.Linear of a module by a QuantizedLinear, round to nearest.

    The state_dict then holds the integers and scales under the layer's name. Rows that no group
    size up to the wished one divides are 8 bits with one scale also for int4.

    Args:
        model: changed in place; a single Linear is answered by the new layer.
        dtype: torch.int8 or "int8" (one scale per output), or "int4" (one per group).
        group_size: 32, 64 or 128, for int4.
        symmetric: without zero points; with them the error is a little less.
        skip: called with name and layer; True keeps the layer, as for a head.

    Returns:
        The module.

    Raises:
        OptionError: [quantize-mode] or [quantize-group] for a value that is not listed above.
    """
    mode = str(dtype).removeprefix("torch.")
    if mode not in MODES:
        raise OptionError(
            f"quantize_model: dtype is one of {', '.join(MODES)}; got {dtype!r}. Choose one.",
            code="quantize-mode",
        )
    if group_size not in GROUP_SIZES:
        raise OptionError(
            f"quantize_model: group_size is one of 32, 64, 128; got {group_size!r}. Choose one.",
            code="quantize-group",
        )

    def made(name: str, layer: nn.Linear) -> nn.Module:
        if skip is not None and skip(name, layer):
            return layer
        return QuantizedLinear.fromTorch(layer, mode, group_size=group_size, symmetric=symmetric)

    if type(model) is nn.Linear:
        return made("", model)
    replaced: dict[nn.Module, nn.Module] = {}
    for name, parent in list(model.named_modules()):
        for child_name, child in list(parent._modules.items()):  # a shared child under each name
            if child is None or type(child) is not nn.Linear:
                continue
            if child not in replaced:
                replaced[child] = made(f"{name}.{child_name}".lstrip("."), child)
            setattr(parent, child_name, replaced[child])
    return model

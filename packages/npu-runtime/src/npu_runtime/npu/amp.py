"""Mixed precision of ``torch.npu``: autocast, the gradient scaler, and the dtypes for them.

The autocast op lists are with the kernels: packages/npu-ops/csrc/autocast.cpp.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import autocast_mode, grad_scaler

from npu_runtime.errors import InputError
from npu_runtime.public_calls import public_call

__all__ = [
    "GradScaler",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "is_bf16_supported",
    "is_tf32_supported",
    "set_autocast_dtype",
    "set_autocast_enabled",
]

custom_fwd: Callable[..., Any] = functools.partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd: Callable[..., Any] = functools.partial(torch.amp.custom_bwd, device_type="npu")


class autocast(autocast_mode.autocast):
    """``torch.autocast("npu", ...)``, as a context manager or a decorator.

    Args:
        enabled: whether to cast at all.
        dtype: dtype of the ops on the lower-precision list; by default the current one.
        cache_enabled: whether to cache cast weights until the context ends.
    """

    @public_call
    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__("npu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(grad_scaler.GradScaler):
    """``torch.amp.GradScaler("npu", ...)``: keeps float16 gradients from vanishing.

    Args:
        init_scale: the first scale.
        growth_factor: factor of the scale after ``growth_interval`` good steps.
        backoff_factor: factor of the scale after a step with an inf or a nan.
        growth_interval: good steps in a row before the scale grows.
        enabled: whether to scale at all.

    Raises:
        InputError: the growth factor is not above 1, or the backoff factor is not below 1 (code
            ``scale-factor``).
    """

    @public_call
    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and not (growth_factor > 1.0 and backoff_factor < 1.0):
            raise InputError(
                "torch.npu.amp.GradScaler: `growth_factor` must be above 1 and `backoff_factor` "
                f"below, got {growth_factor} and {backoff_factor}. Omit them for 2 and 0.5.",
                code="scale-factor",
            )
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes for ``torch.autocast("npu", dtype=...)``."""
    return [torch.bfloat16, torch.float16]


def get_autocast_dtype() -> torch.dtype:
    """Returns autocast's default dtype: float16 unless it was set."""
    return torch.get_autocast_dtype("npu")


@public_call
def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Sets autocast's default dtype for this thread."""
    torch.set_autocast_dtype("npu", dtype)


def is_autocast_enabled() -> bool:
    """Whether autocast is on for npu, in this thread."""
    return torch.is_autocast_enabled("npu")


@public_call
def set_autocast_enabled(enabled: bool) -> None:
    """Switches autocast for npu on or off, for this thread."""
    torch.set_autocast_enabled("npu", enabled)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every supported device computes in bfloat16."""
    return True


def is_tf32_supported() -> bool:
    """False: TF32 is a format of NVIDIA's matrix units."""
    return False

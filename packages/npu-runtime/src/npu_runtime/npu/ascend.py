"""Names of ``torch_npu``'s ``torch.npu`` that configure Ascend's compiler and kernels.

Scripts set them first. Options with a counterpart take effect; options that only concern Ascend's
kernels are stored, so that they read back, but have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from npu_runtime.errors import InputError
from npu_runtime.npu import memory
from npu_runtime.public_calls import public_call

__all__ = [
    "clear_npu_overflow_flag",
    "config",
    "conv",
    "disable_deterministic_with_backward",
    "empty_virt_addr_cache",
    "enable_deterministic_with_backward",
    "get_mm_bmm_format_nd",
    "get_npu_overflow_flag",
    "is_jit_compile_false",
    "matmul",
    "npu_check_overflow",
    "set_compile_mode",
    "set_deterministic_level",
    "set_mm_bmm_format_nd",
    "set_option",
]


class _Settings:
    """Stored settings without effect: no kernel reads them."""

    def __init__(self, **values: bool) -> None:
        self.__dict__.update(values)


config = _Settings(allow_internal_format=False)
matmul = _Settings(allow_hf32=False)
conv = _Settings(allow_hf32=False)
_options: dict[str, str] = {}
_uses_plain_format = True


@public_call
def set_compile_mode(jit_compile: bool = False) -> None:
    """Stores Ascend's per-op compilation mode; no effect, since torch.compile compiles graphs."""
    set_option({"jitCompile": "enable" if jit_compile else "disable"})


def is_jit_compile_false() -> bool:
    """True unless set_compile_mode(jit_compile=True) was called."""
    return _options.get("jitCompile", "disable") == "disable"


@public_call
def set_option(option: Mapping[str, str]) -> None:
    """Stores options of Ascend's compiler; no effect."""
    _options.update(option)


@public_call
def set_mm_bmm_format_nd(switch: bool) -> None:
    """Stores whether matrix products use plain layouts; no effect, since they always do."""
    global _uses_plain_format
    _uses_plain_format = bool(switch)


def get_mm_bmm_format_nd() -> bool:
    """Returns the value of set_mm_bmm_format_nd; True by default."""
    return _uses_plain_format


def enable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """Switches deterministic algorithms on, for the whole process; returns the tensor."""
    torch.use_deterministic_algorithms(True)
    return tensor


def disable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """Switches deterministic algorithms off, for the whole process; returns the tensor."""
    torch.use_deterministic_algorithms(False)
    return tensor


@public_call
def set_deterministic_level(level: int) -> None:
    """Switches deterministic algorithms off (0) or on (1, 2), for the whole process.

    Raises:
        InputError: [ascend-option] for another level.
    """
    if level not in (0, 1, 2):
        raise InputError(
            f"torch.npu.set_deterministic_level: `level` must be 0, 1 or 2, got {level!r}. "
            "Pass 1 for deterministic algorithms.",
            code="ascend-option",
        )
    torch.use_deterministic_algorithms(level > 0)


def empty_virt_addr_cache() -> None:
    """Calls torch.npu.empty_cache."""
    memory.empty_cache()


def clear_npu_overflow_flag() -> None:
    """Does nothing: numbers overflow to infinity, without a flag."""


def get_npu_overflow_flag() -> bool:
    """Always raises, as torch_npu does on newer chips: numbers overflow without a flag.

    Raises:
        InputError: [overflow-flag].
    """
    raise InputError(
        "torch.npu.get_npu_overflow_flag: there is no overflow flag, because numbers overflow to "
        "infinity. Call torch.npu.npu_check_overflow(gradient), or use torch.npu.amp.GradScaler, "
        "which checks gradients.",
        code="overflow-flag",
    )


@public_call
def npu_check_overflow(grad: torch.Tensor | float) -> bool:
    """Whether a gradient has an infinity or NaN.

    Args:
        grad: a tensor of any shape and dtype, or a number.
    """
    if isinstance(grad, torch.Tensor):
        return not bool(torch.isfinite(grad).all())
    return not math.isfinite(grad)

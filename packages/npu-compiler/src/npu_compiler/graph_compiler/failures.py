"""Failures of the compiler itself: an error under strict, otherwise a warning and a fallback."""

from __future__ import annotations

import warnings

import torch

from npu_command.errors import NpuError
from npu_compiler.errors import CompilerError, CompilerFailureWarning, LoweringError, PassError

__all__ = ["is_failure", "report_failure"]


def is_failure(error: Exception) -> bool:
    """Whether an error is a defect of the compiler, not something that the user can fix."""
    if isinstance(error, (LoweringError, PassError)):
        return True  # a refusal that was not handled
    return not isinstance(error, (NpuError, torch._dynamo.exc.TorchDynamoException))


def report_failure(
    name: str,
    error: Exception,
    *,
    instead: str,
    is_strict: bool,
    advice: str = "Please report it.",
) -> None:
    """Warns about a failure of the compiler; [compiler-failure] under strict.

    `instead` follows "so" in the message and describes the fallback.
    """
    if is_strict and isinstance(error, NpuError):
        raise error
    lines = str(error).strip().splitlines() or ["without a message"]
    text = (
        f"{name}: compiling must not fail, got {type(error).__name__}: {lines[0][:500].rstrip('.')}"
    )
    if is_strict:
        raise CompilerError(
            f"{text}. Compile without strict, and report it.", code="compiler-failure"
        ) from error
    # At the user's call; the frames between are torch's and ours.
    warnings.warn(
        f"{text}; so {instead}. {advice} [compiler-failure]",
        CompilerFailureWarning,
        stacklevel=2,
    )

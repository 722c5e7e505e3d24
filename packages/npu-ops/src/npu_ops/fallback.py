"""Fallback of ops to the host: counts, a log line at first use, and rules that force or forbid it.

csrc/fallback.cpp runs a call on the host. The package variants decides which ops run as programs
instead.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from npu_ops import _C
from npu_ops.config import Settings, read_host_ops, read_settings
from npu_ops.errors import OperatorInputError
from npu_ops.names import check_patterns, dotted_name, first_match
from npu_runtime.errors import KindError
from npu_runtime.public_calls import public_call

__all__ = [
    "calling_line",
    "fallback_report",
    "host_pattern",
    "reset_fallback_report",
    "set_fallback_policy",
]

_logger = logging.getLogger(__name__)
_TORCH = str(Path(torch.__file__).parent)
_PLATFORM = str(Path(__file__).parent)
_PRINTING = str(Path(torch.__file__).parent / "_tensor_str.py")


class _Policy:
    """The active rules. The environment is read on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settings: Settings | None = None

    def get(self) -> Settings:
        with self._lock:
            if self._settings is None:
                self._settings = read_settings()
                _warn_of_unknown(self._settings.host_ops)
            return self._settings

    def change(self, **changes: object) -> None:
        settings = self.get()
        with self._lock:
            self._settings = replace(settings, **changes)  # type: ignore[arg-type]


def _warn_of_unknown(patterns: Sequence[str]) -> None:
    """Warns of a pattern without an operator, which a later import may define."""
    try:
        check_patterns("NPU_FALLBACK_OPS", patterns)
    except OperatorInputError as failure:
        warnings.warn(str(failure), RuntimeWarning, stacklevel=2)


_policy = _Policy()


def fallback_report() -> dict[str, int]:
    """Returns calls per op since the last reset, for example `{"aten::mm": 12}`.

    Only called ops are listed, the most frequent first; equal counts are in alphabetical order. Ops
    with an npu kernel (factories, copies, views, programs) are not fallbacks and are not counted.
    """
    return _C.fallback_counts()


def reset_fallback_report() -> None:
    """Resets all counts to zero."""
    _C.reset_fallback_counts()


@public_call
def set_fallback_policy(
    *, strict: bool | None = None, host_ops: tuple[str, ...] | list[str] | None = None
) -> None:
    """Changes the fallback rules of the process.

    Args:
        strict: whether an op without an npu kernel is an error (`NPU_STRICT`); None keeps the
            current value.
        host_ops: patterns of ops that always run on the host, strict or not (`NPU_FALLBACK_OPS`):
            `aten.mm`, `mm`, `aten.*norm*`. None keeps the current patterns.

    Raises:
        KindError: [argument-kind] for patterns that are not str.
        OperatorInputError: [unknown-op] for a pattern that matches no operator.
    """
    patterns = None if host_ops is None else tuple(host_ops)
    if patterns is not None and not all(isinstance(one, str) for one in patterns):
        raise KindError(
            "npu_ops.set_fallback_policy: `host_ops` must be patterns of names, got "
            f"{ascii(patterns)[:80]}. Pass strings: ['aten.mm'].",
            code="argument-kind",
        )
    check_patterns("npu_ops.set_fallback_policy: host_ops", patterns or ())
    if strict is not None:
        _policy.change(strict=bool(strict))
    if patterns is not None:
        _policy.change(host_ops=patterns)
    _force(_policy.get().host_ops)
    _C.reset_host_use()
    _C.reset_choices()


def host_pattern(name: str) -> str | None:
    """Returns the pattern that sent an op to the host, or None."""
    return first_match(name, _policy.get().host_ops)


def calling_line() -> str:
    """Returns the current line of the user's Python code, as `file:line`."""
    return _caller()[0]


def _force(patterns: Sequence[str]) -> None:
    """Removes the unboxed kernels of ops that a pattern selects."""
    for name in _C.known_ops():
        _C.force_host(name, first_match(name, patterns) is not None)


def _rule(name: str) -> tuple[bool, str | None]:
    """Decides at an op's first host call whether it may run there, with the reason if not."""
    settings = _policy.get()
    if settings.strict and first_match(name, settings.host_ops) is None:
        place, is_printing = _caller()
        if is_printing:
            return False, None
        return True, (
            f"{dotted_name(name)}: NPU_STRICT forbids host kernels, and this op has no kernel of "
            f"its own for these arguments; called at {place}. Allow it with "
            f"NPU_FALLBACK_OPS={dotted_name(name)}, or unset NPU_STRICT. [fallback-forbidden]"
        )
    if _logger.isEnabledFor(logging.INFO):
        _logger.info("%s runs on the host; first called at %s", dotted_name(name), _caller()[0])
    return True, None


def _caller() -> tuple[str, bool]:
    """Returns the Python line that called the op, and whether it is torch printing a tensor."""
    frame = sys._getframe(1)
    is_printing = False
    while frame is not None:
        file = frame.f_code.co_filename
        is_printing = is_printing or file == _PRINTING
        if not file.startswith((_TORCH, _PLATFORM, "<frozen")):
            return f"{file}:{frame.f_lineno}", is_printing
        frame = frame.f_back  # type: ignore[assignment]
    return "no line of Python (a backward pass, or another thread)", is_printing


if _forced := read_host_ops():
    _force(_forced)
_C.set_host_use_rule(_rule)

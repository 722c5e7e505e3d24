"""Native kernel programs: on torch tensors, or on numpy arrays without torch."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

__all__ = ["has_programs", "is_torch_loaded", "most_threads", "native"]


def is_torch_loaded() -> bool:
    """Whether torch is loaded, so that programs take its tensors."""
    return sys.modules.get("torch") is not None


def native() -> Any:
    """Returns npu_ops._C if torch is loaded, else npu_ops._programs."""
    if is_torch_loaded():
        from npu_ops import _C

        return _C
    from npu_ops import _programs

    return _programs


def has_programs() -> bool:
    """Whether this process can run programs; an older build may need torch."""
    return is_torch_loaded() or importlib.util.find_spec("npu_ops._programs") is not None


def most_threads() -> int:
    """Returns the maximum number of threads of a step: torch's, or OMP_NUM_THREADS without it."""
    if is_torch_loaded():
        return max(1, int(sys.modules["torch"].get_num_threads()))
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else sys.maxsize

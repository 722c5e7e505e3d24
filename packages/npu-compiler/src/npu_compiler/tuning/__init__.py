"""Measured choices: which way of compiling a graph is fastest on this device, kept for later."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npu_compiler.tuning.candidates import CANDIDATES, Candidate
    from npu_compiler.tuning.store import TuningRecord, TuningReport, TuningStore

__all__ = ["CANDIDATES", "Candidate", "TuningRecord", "TuningReport", "TuningStore"]

_HOMES = {
    "CANDIDATES": "candidates",
    "Candidate": "candidates",
    "TuningRecord": "store",
    "TuningReport": "store",
    "TuningStore": "store",
}


def __getattr__(name: str) -> Any:
    # Late: a warm start asks only whether a run is open, and the store imports openvino.
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

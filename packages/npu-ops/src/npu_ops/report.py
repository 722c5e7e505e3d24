"""Which ops ran on the host through the fallback, and how often.

Spans of single calls go to the listeners of `npu_runtime.observe`; how a call is carried out is in
csrc/fallback.cpp.
"""

from . import _C

__all__ = ["fallback_report", "reset_fallback_report"]


def fallback_report() -> dict[str, int]:
    """Returns calls per op since the last reset, for example `{"aten::mm": 12}`.

    Ops that were not called are left out. The most frequent op comes first; equal counts are in
    alphabetical order. Ops with a kernel of their own on npu (factories, copies, views) are no
    fallback and are not counted.
    """
    return _C.fallback_counts()


def reset_fallback_report() -> None:
    """Sets all counts back to zero."""
    _C.reset_fallback_counts()

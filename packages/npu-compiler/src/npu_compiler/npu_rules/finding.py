"""One rule and what it said of a model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One rule and what it said.

    Attributes:
        rule: what an NPU asks for.
        verdict: accepted, refused, or unknown where it cannot be found out here.
        detail: the figures, or what is in the way and what to do.
        operation: type and version of the operation that breaks the rule; "" for a whole model.
        node: the FX node that it comes from.
        line: the Python line of that node, "file.py:123"; "" where it is not known.
        source: file, line and commit of the compiler's source that the rule was read from.
    """

    rule: str
    verdict: str
    detail: str
    operation: str = ""
    node: str = ""
    line: str = ""
    source: str = ""

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
        module: path of the torch module that the node comes from; "" where it is not known.
        judge: "rules" or, for the verdict of the NPU's own compiler, "compiler".
    """

    rule: str
    verdict: str
    detail: str
    operation: str = ""
    node: str = ""
    line: str = ""
    source: str = ""
    module: str = ""
    judge: str = "rules"

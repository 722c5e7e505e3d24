"""Verdicts on programs compared with torch, as stored with the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["DIFFERED", "Verdict"]

# Prefix of the verdict on a wrong program.
DIFFERED = "differed from torch"

_STATUSES = ("right", "mended", "wrong", "unsteady", "unchecked")


@dataclass(frozen=True)
class Verdict:
    """A program's verdict.

    Attributes:
        status: "right"; "mended", right with a workaround; "wrong", despite all known workarounds;
            "unsteady", wrong once and right when run again; "unchecked" if there was no reference.
        difference: how the program's result differed, or why it was not checked; empty when right.
        workaround: options of the device's compiler that make it right.
        nodes: positions, in the program's graph, of the calls that are wrong together.
        source: file:line of the Python code of the last of these, where recorded.
    """

    status: str
    difference: str = ""
    workaround: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[int, ...] = ()
    source: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain dicts and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Verdict | None:
        """Reads the data of as_json; None for anything else."""
        if not isinstance(content, dict) or content.get("status") not in _STATUSES:
            return None
        try:
            return cls(**{**content, "nodes": tuple(content.get("nodes", ()))})
        except TypeError:
            return None

    def __str__(self) -> str:
        if self.status == "right":
            return "equal to torch"
        if self.status == "unchecked":
            return f"not compared with torch: {self.difference}"
        where = f" ({self.source})" if self.source else ""
        text = f"{DIFFERED}{where}: {self.difference}"
        if self.status == "unsteady":
            text += "; right when it was run again"
        if self.workaround:
            options = ", ".join(f"{name}={value}" for name, value in self.workaround.items())
            text += f"; right with {options}"
        return text

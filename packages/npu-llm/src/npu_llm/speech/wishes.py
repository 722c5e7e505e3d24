"""Wishes: what a transcript shall be like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Times", "Wishes"]

Times = Literal["word", "segment"]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a transcript shall be like.

    Attributes:
        language: a code such as "en" or a name such as "german"; None to find it out.
        translates: whether into English.
        times: what has times; None for text alone.
        beams: how many are searched; more search longer.
        temperature: 0.0 for the most likely tokens; above, they are drawn.
    """

    language: str | None = None
    translates: bool = False
    times: Times | None = None
    beams: int = 1
    temperature: float = 0.0

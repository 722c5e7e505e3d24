"""StopStrings: passes a text on until it contains one of some strings."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Holds back what may be the beginning of a stop string.

    Attributes:
        has_stopped: whether one was found; what follows is ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.has_stopped = False
        self._stops = [stop for stop in stops if stop]
        self._held = ""

    def take(self, piece: str) -> str:
        """Takes the next piece of the text; returns what can be passed on."""
        if self.has_stopped:
            return ""
        text = self._held + piece
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.has_stopped, self._held = True, ""
            return text[: min(found)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Returns what was held back, once the text has ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Returns how long the longest end of the text is that the stop string begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)

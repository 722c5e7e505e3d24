"""Replaced attributes, and the way back."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Patches"]

_MISSING = object()


@dataclass
class Patches:
    """A list of replacements that can be undone, the latest first."""

    _before: list[tuple[Any, str, object]] = field(default_factory=list)

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replaces, or adds, an attribute of a module or a class."""
        # What a class inherits comes back by deleting; so does what was not there.
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Puts everything back as it was."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

"""Call: a function that a model asks to be called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """A call that a model asks for.

    Attributes:
        id: names it in the answer to it.
        name: which function.
        arguments: a JSON object, as text.
    """

    id: str
    name: str
    arguments: str

    def content(self) -> dict[str, Any]:
        """Returns it as OpenAI's interface has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

"""Call: a function call that a model requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """A call that a model requests.

    Attributes:
        id: identifier, repeated in the message with the function's result.
        name: name of the function.
        arguments: a JSON object, as text.
    """

    id: str
    name: str
    arguments: str

    def content(self) -> dict[str, Any]:
        """Returns the call in the format of OpenAI's API."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

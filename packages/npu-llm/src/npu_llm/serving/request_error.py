"""RequestError: an invalid request, with the name of its field."""

from __future__ import annotations

from npu_llm.errors import OptionError

__all__ = ["RequestError"]


class RequestError(OptionError):
    """An invalid request.

    Attributes:
        parameter: the invalid field; None for the request as a whole.
    """

    def __init__(self, message: str, *, code: str, parameter: str | None = None) -> None:
        super().__init__(message, code=code)
        self.parameter = parameter

"""Texts that come from outside: bytes that are not UTF-8 are an error, not a traceback later on.

Python hides such bytes in a text as lone surrogates, where the locale or the command line brought
them, and a tokenizer fails on these.
"""

from __future__ import annotations

from collections.abc import Callable

from npu_llm.errors import OptionError

__all__ = ["check_text", "read_text"]


def check_text(subject: str, text: str) -> str:
    """Returns a text that can be written as UTF-8.

    Raises:
        OptionError: [text-encoding] for one that cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        raise _no_text(subject, f"{text[failure.start]!r} at {failure.start:,}") from failure
    return text


def read_text(subject: str, read: Callable[[], str]) -> str:
    """Returns what a function reads from a stream.

    Raises:
        OptionError: [text-encoding] when it is not UTF-8.
    """
    try:
        return check_text(subject, read())
    except UnicodeDecodeError as failure:
        raise _no_text(subject, str(failure)) from failure


def _no_text(subject: str, received: str) -> OptionError:
    return OptionError(
        f"{subject}: must be a text in UTF-8; got {received}. Convert it, with iconv say.",
        code="text-encoding",
    )

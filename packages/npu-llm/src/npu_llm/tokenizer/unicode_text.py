"""Checks text from outside: bytes that are not UTF-8 are an error, not a traceback later on.

Python keeps such bytes in a string as lone surrogates, when they come from the locale or the
command line, and tokenizers fail on these.
"""

from __future__ import annotations

from collections.abc import Callable

from npu_llm.errors import OptionError

__all__ = ["check_text", "read_text"]


def check_text(subject: str, text: str) -> str:
    """Returns the text, if it can be written as UTF-8.

    Raises:
        OptionError: [text-encoding] if it cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        raise _not_unicode(subject, f"{text[failure.start]!r} at {failure.start:,}") from failure
    return text


def read_text(subject: str, read: Callable[[], str]) -> str:
    """Returns what a function reads from a stream.

    Raises:
        OptionError: [text-encoding] when that is not UTF-8.
    """
    try:
        return check_text(subject, read())
    except UnicodeDecodeError as failure:
        raise _not_unicode(subject, str(failure)) from failure


def _not_unicode(subject: str, received: str) -> OptionError:
    return OptionError(
        f"{subject}: must be text in UTF-8; got {received}. Convert it, for example with iconv.",
        code="text-encoding",
    )

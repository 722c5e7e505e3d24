"""The texts that a command reads: one a line, from a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from npu_llm.errors import OptionError
from npu_llm.prompts.unicode_text import read_text

__all__ = ["read_lines"]


def read_lines(name: str) -> list[str]:
    """Returns the lines of a file that are not empty.

    Args:
        name: the file, or "-" for standard input.

    Raises:
        OptionError: [text-lines] for a file that cannot be read or has no text, [text-encoding]
            for bytes that are not UTF-8.
    """
    subject = "standard input" if name == "-" else name
    try:
        text = read_text(subject, sys.stdin.read if name == "-" else Path(name).read_text)
    except OSError as failure:
        raise OptionError(
            f"{subject}: must be a file of texts, one a line; got {failure.strerror}. Name "
            "another, or - for standard input.",
            code="text-lines",
        ) from failure
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise OptionError(
            f"{subject}: must have texts, one a line; got none. Write some.", code="text-lines"
        )
    return lines

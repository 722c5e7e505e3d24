"""Texts that a command reads, one a line, and what it answers for each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_command.answers import OUTPUT, give_answer
from npu_llm.errors import OptionError
from npu_llm.prompts.unicode_text import read_text

__all__ = ["check_lines", "give_lines", "read_lines"]


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


def check_lines(name: str) -> None:
    """Raises what read_lines does for a file that is not there.

    What is there may be a pipe, which is read once.
    """
    if name != "-" and not Path(name).exists():
        read_lines(name)


def give_lines(
    options: argparse.Namespace, lines: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> None:
    """Writes what was found for each text: a line, or a line of JSON with --json.

    Args:
        options: with json and output; `--json -o FILE` means `--json=FILE`.
        lines: for people.
        records: the same, for programs.

    Raises:
        FileAccessError: [output-file] if the file of --json cannot be written.
    """
    text = "".join(f"{line}\n" for line in lines)
    place, output = options.json, options.output
    if place == OUTPUT and output is not None:
        place, output = output, None

    def show() -> None:
        if output is not None:
            output.write_text(text)
        elif place is None:
            print(text, end="")

    give_answer(place, records, show, is_lines=True)

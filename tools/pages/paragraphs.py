"""Fails on too long paragraphs, list items and table cells of pages.

    python tools/pages/paragraphs.py PAGE ...

A paragraph of the documentation has about 80 words, and at most 110.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["MOST_WORDS", "main", "too_long"]

MOST_WORDS = 110
_FENCE = re.compile(r"^( *)(```+).*?^\1\2", re.DOTALL | re.MULTILINE)
_HEAD = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_START = re.compile(r"\s*([-*] |\d+\. |:   |\||#|<|!!!|=== )")


def too_long(text: str) -> Iterator[tuple[int, int]]:
    """Yields the line and the number of words of each part of a page that is too long."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n")

    text = _FENCE.sub(blank, _HEAD.sub(blank, text))
    start, words = 1, 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if not line.strip() or _START.match(line):
            if words > MOST_WORDS:
                yield start, words
            words = 0
        start = start if words else number
        parts = line.split(" | ") if line.startswith("|") else [line]
        counts = [len(re.sub(r"\]\([^)]*\)", "]", part).split()) for part in parts]
        words += max(counts)


def main(pages: Sequence[str]) -> int:
    """Prints too long parts of some pages; 1 if there are any."""
    found = [
        f"{page}:{line}: {words} words in one paragraph; at most {MOST_WORDS}. Split it."
        for page in pages
        for line, words in too_long(Path(page).read_text(encoding="utf-8"))
    ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

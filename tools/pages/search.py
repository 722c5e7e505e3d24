"""Ranks the documentation's pages for a query, like the built site's search.

The site's index has an entry for each page and each heading below it. lunr scores entries by BM25,
with the weights of mkdocs-material: a match in a title counts a thousand times one in the text,
pages and entries with all words of the query come first, and a word finds longer ones that begin
with it. API documentation, which is generated from docstrings, is not read.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["EXPECTED", "Index"]

_K1, _B, _TITLE = 1.2, 0.75, 1000.0  # of lunr and of mkdocs-material
_SEPARATOR = re.compile(r"[\s\-,:;!=\[\]()\"`/]+|\.(?!\d)")  # as in mkdocs.yml
EXPECTED: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("search_words.toml").read_text("utf-8")
)


@dataclass(frozen=True)
class _Entry:
    page: str
    is_page: bool
    boost: float  # of the page's front matter
    words: dict[str, Counter[str]] = field(default_factory=dict)


class Index:
    """The entries of all pages of a folder.

    Args:
        docs: folder of Markdown files.
    """

    def __init__(self, docs: Path) -> None:
        files = sorted(docs.rglob("*.md"))
        self._entries = [
            entry
            for file in files
            for entry in _entries(file.relative_to(docs).as_posix(), file.read_text("utf-8"))
        ]
        self._lengths = {
            name: sum(one.words[name].total() for one in self._entries) / len(self._entries)
            for name in ("title", "text")
        }
        self._holders = Counter(
            word for one in self._entries for word in {*one.words["title"], *one.words["text"]}
        )
        self._all = sorted(self._holders)

    def search(self, query: str) -> list[str]:
        """Return the pages that match a query, the best one first."""
        asked = [self._beginning(word) for word in _words(query)]
        scores: dict[str, float] = {}
        for entry in self._entries:
            score = sum(self._score(entry, word) for words in asked for word in words)
            has_all = all(
                any(word in found for word in words for found in entry.words.values())
                for words in asked
            )
            score *= entry.boost * (1 + (entry.is_page + has_all) ** 2)
            if score:
                scores[entry.page] = max(score, scores.get(entry.page, 0.0))
        return sorted(scores, key=lambda page: -scores[page])

    def _beginning(self, word: str) -> list[str]:
        """Returns words of the index with a prefix."""
        start = bisect.bisect_left(self._all, word)
        return list(itertools.takewhile(lambda one: one.startswith(word), self._all[start:]))

    def _score(self, entry: _Entry, word: str) -> float:
        rarity = math.log(1 + (len(self._entries) + 0.5) / (self._holders[word] + 0.5))
        score = 0.0
        for name, weight in (("title", _TITLE), ("text", 1.0)):
            count = entry.words[name][word]
            length = entry.words[name].total() / self._lengths[name]
            score += weight * rarity * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))
        return score


def _entries(page: str, text: str) -> list[_Entry]:
    boost = re.match(r"---\n(?:.*\n)*?search: \{ boost: (\d+) \}\n", text)
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    parts = re.split(
        r"^(#{1,6}) +(.*)$", re.sub(r"^ *```.*?^ *```", _code, text, flags=re.M | re.S), flags=re.M
    )
    found = []
    for level, title, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        words = {
            "title": Counter(_words(re.sub(r"\{.*?\}", "", title))),
            "text": Counter(_words(re.sub(r"\]\([^)]*\)", "]", body))),
        }
        found.append(_Entry(page, level == "#", float(boost[1]) if boost else 1.0, words))
    return found


def _code(found: re.Match[str]) -> str:
    return re.sub(r"^#", " #", found[0], flags=re.MULTILINE)


def _words(text: str) -> list[str]:
    words = (word.strip("*_<>{}|?'+&") for word in _SEPARATOR.split(text.lower()))
    return [word for word in words if word]

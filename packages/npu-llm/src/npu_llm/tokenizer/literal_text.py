"""LiteralText: encodes special tokens in users' messages as plain text."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

__all__ = ["LiteralText"]

# Code points that are not characters, which texts should not contain.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


@dataclass(frozen=True)
class _Special:
    """A special token, and whether it strips surrounding white space."""

    id: int
    lstrip: bool
    rstrip: bool


class LiteralText:
    """Marks special tokens in messages, and encodes a rendered template accordingly.

    Only tokens that a vocabulary declares as special count; others, such as <think> in some, are
    ordinary text.
    """

    def __init__(self, tokenizer: Any, template: str | None) -> None:
        """Takes a tokenizer of transformers, or a backend of the tokenizers library.

        Args:
            tokenizer: the tokenizer.
            template: the chat template.
        """
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._template = template or ""

    def mark(self, value: Any) -> tuple[Any, str | None]:
        """Returns messages or tools with a mark inside each special token, and the mark.

        Without special tokens, returns the value unchanged, and None. Tokens that the template
        itself looks for in messages are not marked.
        """
        if self._looked_up is None or not any(map(self._looked_up.search, _texts(value))):
            return value, None
        mark = next((one for one in _MARKS if not any(one in text for text in _texts(value))), "")
        return self._marked(value, mark), mark

    def encode(self, text: str, mark: str) -> list[int]:
        """Returns the tokens of a rendered template; marked tokens are encoded as text."""
        assert self._pattern is not None, "there was something to mark"
        found: list[int] = []
        start, strips = 0, False
        for match in self._pattern.finditer(text):
            special = self._specials[match[0]]
            before = text[start : match.start()]
            found += self._encode_text(before, mark, lstrip=strips, rstrip=special.lstrip)
            found.append(special.id)
            start, strips = match.end(), special.rstrip
        return found + self._encode_text(text[start:], mark, lstrip=strips, rstrip=False)

    @cached_property
    def _specials(self) -> Mapping[str, _Special]:
        if self._backend is not None:
            added = self._backend.get_added_tokens_decoder()
        else:
            added = self._tokenizer.added_tokens_decoder
        return {
            token.content: _Special(number, token.lstrip, token.rstrip)
            for number, token in added.items()
            if token.special and len(token.content) > 1
        }

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return _any_of(self._specials)

    @cached_property
    def _looked_up(self) -> re.Pattern[str] | None:
        """Pattern of the special tokens that are marked."""
        quoted = r"""(['"]){}\1\s*(not\s+)?in\b|(split|startswith|endswith|replace)\((['"]){}\4"""
        return _any_of(
            text
            for text in self._specials
            if not re.search(quoted.replace("{}", re.escape(text)), self._template)
        )

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            assert self._looked_up is not None, "there is something to mark"
            return self._looked_up.sub(lambda one: one[0][:1] + mark + one[0][1:], value)
        if isinstance(value, Mapping):
            return {name: self._marked(one, mark) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(one, mark) for one in value]
        return value

    def _encode_text(self, text: str, mark: str, *, lstrip: bool, rstrip: bool) -> list[int]:
        text = text.lstrip() if lstrip else text
        text = (text.rstrip() if rstrip else text).replace(mark, "")
        if not text:
            return []
        if self._backend is not None:
            (encoding,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
            ids: list[int] = encoding.ids
            return ids
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(encoded["input_ids"])

    @cached_property
    def _plain(self) -> Any:
        """A backend that reads special tokens as text."""
        plain = copy.deepcopy(self._backend)
        plain.encode_special_tokens = True
        plain.no_truncation()
        plain.no_padding()
        return plain


def _any_of(texts: Any) -> re.Pattern[str] | None:
    """Returns a pattern of texts that prefers the longest match; None for no text."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _texts(value: Any) -> Iterator[str]:
    """Yields all texts in messages or tools."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)

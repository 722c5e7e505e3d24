"""TokenBytes: the bytes of each token in a vocabulary, including partial characters."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

__all__ = ["TokenBytes", "longest_token"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


class TokenBytes:
    """The bytes of a tokenizer's tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """Takes a tokenizer with `decode` and, for bytes of partial characters, a backend."""
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)

    def of(self, token: int) -> bytes:
        """Returns the bytes of a token; joined, an answer's bytes are its text."""
        if self._backend is None or token in self._added or self._kinds is None:
            return self._decoded(token)
        piece = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if "ByteLevel" in self._kinds:
            found = [_BYTE_OF.get(character) for character in piece]
            return self._decoded(token) if None in found else bytes(found)  # type: ignore[arg-type]
        if byte := _BYTE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return str(piece).replace(_SPACE, " ").encode()

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def _kinds(self) -> frozenset[str] | None:
        """Types of the decoder's parts; None if its tokens have no readable bytes."""
        decoder = self._backend.decoder
        if decoder is None:
            return None
        found = set(_types(json.loads(decoder.__getstate__())))
        return frozenset(found) if found & {"ByteLevel", "ByteFallback", "Metaspace"} else None

    def _decoded(self, token: int) -> bytes:
        text: str = self._tokenizer.decode([token], clean_up_tokenization_spaces=False)
        return text.encode()


def longest_token(tokenizer: Any) -> int | None:
    """Returns the maximum number of characters that one token can represent; None without a bound.

    Byte-pair vocabularies have a bound, because their tokens cover the whole text.

    Args:
        tokenizer: a tokenizer with a backend of the tokenizers library.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "BPE":
        return None
    normalizer = backend.normalizer
    kinds = set() if normalizer is None else set(_types(json.loads(normalizer.__getstate__())))
    if kinds - {"Sequence", "Prepend", "Replace", "NFC"}:
        return None  # it may remove characters
    # NFC composes at most four characters into one.
    scale = 4 if "NFC" in kinds else 1
    return scale * max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)


def _types(part: Any) -> list[str]:
    """Returns the types of a decoder or a normalizer, including its parts."""
    if isinstance(part, list):
        return [kind for one in part for kind in _types(one)]
    if not isinstance(part, dict):
        return []
    inner = [kind for value in part.values() for kind in _types(value)]
    return [str(part["type"]), *inner] if "type" in part else inner


def _byte_characters() -> dict[str, int]:
    """Returns the byte of each character in byte-level vocabularies (GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + index): byte for index, byte in enumerate(other)
    }


_BYTE_OF = _byte_characters()

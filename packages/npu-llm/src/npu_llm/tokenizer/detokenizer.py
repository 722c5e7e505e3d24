"""Detokenizer: decodes an answer incrementally, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Detokenizer", "StopStrings"]

_MOST_OPEN = 16  # tokens that are decoded again with each new one
_STILL_OPEN = 4  # number of these that stay open
_INCOMPLETE = "�"  # decoders return it for incomplete characters


class Detokenizer:
    """The text of an answer, decoded token by token.

    Attributes:
        text: the text returned so far.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str] = (),
        *,
        includes_stop: bool = False,
        skips_special_tokens: bool = True,
    ) -> None:
        """Starts with an empty answer.

        Args:
            tokenizer: an object with decode, such as npu_llm.tokenizer.tokenizer.Tokenizer or a
                tokenizer of transformers.
            stop: strings that end the text.
            includes_stop: whether the text includes the stop string.
            skips_special_tokens: whether special tokens are omitted.
        """
        self.text = ""
        self._skips_special_tokens = skips_special_tokens
        self._tokenizer = tokenizer
        self._stops = StopStrings(stop, includes_stop=includes_stop)
        self._tokens: list[int] = []
        self._decoded = ""  # text passed to _stops
        self._num_settled = 0  # tokens whose text is in _settled_text
        self._settled_text = ""

    @property
    def has_stopped(self) -> bool:
        """Whether the text contains a stop string; later tokens are ignored."""
        return self._stops.has_stopped

    @property
    def stop(self) -> str | None:
        """The stop string that the text contains; None before."""
        return self._stops.found

    @property
    def num_decoded(self) -> int:
        """The number of complete characters of all tokens, including held-back and ignored ones."""
        return len(self._decoded)

    def put(self, tokens: Sequence[int]) -> str:
        """Adds tokens; returns the newly completed text."""
        self._tokens += tokens
        text = self._decode_open()
        return "" if text.endswith(_INCOMPLETE) else self._pass_on(text)

    def end(self) -> str:
        """Returns the held-back text at the end of the answer."""
        return self._pass_on(self._decode_open(), is_last=True)

    def _decode_open(self) -> str:
        """Returns the text of all tokens; only the latest ones are decoded again.

        A token's text may depend on its neighbours: some decoders drop a space at the start, and
        several tokens may form one character. So tokens are settled only if the text of the latest
        few, decoded alone, is a suffix of the whole text.
        """
        open_tokens = self._tokens[self._num_settled :]
        text = self._settled_text + self._decode(open_tokens)
        if len(open_tokens) >= _MOST_OPEN and not text.endswith(_INCOMPLETE):
            last = self._decode(open_tokens[-_STILL_OPEN:])
            if last and text.endswith(last):
                self._num_settled = len(self._tokens) - _STILL_OPEN
                self._settled_text = text.removesuffix(last)
        return text

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens,
            skip_special_tokens=self._skips_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

    def _pass_on(self, text: str, *, is_last: bool = False) -> str:
        piece = self._stops.take(text[len(self._decoded) :])
        self._decoded = max(text, self._decoded, key=len)
        if is_last:
            piece += self._stops.rest()
        self.text += piece
        return piece


class StopStrings:
    """Passes text on until it contains a stop string.

    The end of the text is held back while it may be the start of a stop string.

    Attributes:
        found: the stop string that was found, after which text is ignored; None before.
    """

    def __init__(self, stops: Sequence[str], *, includes_stop: bool = False) -> None:
        self.found: str | None = None
        self._stops = [stop for stop in stops if stop]
        self._includes_stop = includes_stop
        self._held = ""

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string was found."""
        return self.found is not None

    def take(self, piece: str) -> str:
        """Adds a piece of text; returns the text that can be passed on."""
        if self.has_stopped:
            return ""
        text = self._held + piece
        found = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            place, stop = min(found)
            self.found, self._held = stop, ""
            return text[: place + len(stop) if self._includes_stop else place]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Returns the held-back text at the end."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest suffix of the text that is a prefix of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)

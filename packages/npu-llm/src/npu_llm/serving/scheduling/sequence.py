"""Sequence: a request on its way, with the tokens so far and how many of them were read."""

from __future__ import annotations

import time

from npu_llm.serving.scheduling.choosing import Chooser
from npu_llm.serving.scheduling.request import Ended, Finish, Listener, Request, Token

__all__ = ["Sequence"]


class Sequence:
    """One request.

    Attributes:
        number: counts requests in the order in which they came.
        request: what is asked.
        tokens: prompt and answer so far.
        read: how many of them the cache holds.
        cached_tokens: how many tokens of the prompt were in the cache when it first had a turn;
            None before.
        is_cancelled: whether nobody waits for the answer any more.
        arrived_s, started_s: by time.perf_counter; started_s is None before the first turn.
    """

    def __init__(self, number: int, request: Request, listener: Listener) -> None:
        self.number = number
        self.request = request
        self.tokens = list(request.prompt)
        self.read = 0
        self.cached_tokens: int | None = None
        self.is_cancelled = False
        self.arrived_s = time.perf_counter()
        self.started_s: float | None = None
        self.chooser = Chooser(request)
        self._listener = listener

    @property
    def pending(self) -> int:
        """How many tokens have to be read."""
        return len(self.tokens) - self.read

    @property
    def answered(self) -> int:
        """How many tokens the answer has."""
        return len(self.tokens) - len(self.request.prompt)

    def add(self, token: Token) -> Finish | None:
        """Appends a token and tells it; returns why the answer ends with it, None if it goes on."""
        self.tokens.append(token.id)
        self._listener(token)
        if token.id in self.request.ends or self.chooser.is_over:
            return "stop"
        return "length" if self.answered >= self.request.max_new_tokens else None

    def end(self, finish: Finish, error: BaseException | None = None) -> None:
        """Tells that the answer has ended."""
        self._listener(Ended(finish, self.cached_tokens or 0, error))

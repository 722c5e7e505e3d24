"""Answer: one request to an engine, as pieces of text for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from npu_llm.chat.answer_streamer import AnswerText
from npu_llm.errors import ServerError
from npu_llm.serving.answers.stop_strings import StopStrings
from npu_llm.serving.scheduling.engine import Engine
from npu_llm.serving.scheduling.request import Ended, Request, Token, Told

__all__ = ["Answer", "Piece"]


@dataclass(frozen=True)
class Piece:
    """What came since the last piece.

    Attributes:
        text: what may be empty, such as for half a character.
        tokens: the tokens that came with it.
    """

    text: str
    tokens: tuple[Token, ...]


class Answer:
    """An answer on its way; made by its request, which the engine takes at once.

    Attributes:
        tokens: how many have come.
        cached_tokens: how many tokens of the prompt did not have to be read; known at the end.
        finish: "stop" or "length"; None before the end.
        text: all of it so far.
        arrived_s, first_s, last_s: by time.perf_counter: when it was asked for, and when the first
            and the latest token came; None before.
    """

    def __init__(
        self, engine: Engine, request: Request, tokenizer: Any, *, stops: Sequence[str] = ()
    ) -> None:
        """Submits a request; to be called in an event loop.

        Args:
            engine: answers it.
            request: what is asked.
            tokenizer: decodes the tokens.
            stops: strings that end the answer, and are not part of it.

        Raises:
            NpuError: as Engine.submit does.
        """
        self.tokens = 0
        self.cached_tokens = 0
        self.finish: str | None = None
        self.text = ""
        self.arrived_s = time.perf_counter()
        self.first_s: float | None = None
        self.last_s: float | None = None
        self._ends = request.ends
        self._stops = StopStrings(stops)
        self._fresh: list[str] = []
        self._decoder = AnswerText(tokenizer, self._fresh.append)
        self._told: asyncio.Queue[Told] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen(told: Told) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
                loop.call_soon_threadsafe(self._told.put_nowait, told)

        self._ticket = engine.submit(request, listen)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yields what comes until the answer ends; leaving early ends it.

        Raises:
            ServerError: [server-stopping] if the server ends first.
            Exception: what made the engine fail.
        """
        try:
            while True:
                told = await self._told.get()
                if isinstance(told, Ended):
                    self.cached_tokens = told.cached_tokens
                    _raise_failure(told)
                    self._decoder.end()
                    text = self._passed() + self._stops.rest()
                    self.finish = "stop" if self._stops.has_stopped else told.finish
                    self.text += text
                    yield Piece(text, ())
                    return
                yield self._taken(told)
                if self.finish is not None:
                    return
        finally:
            self.close()

    def close(self) -> None:
        """Ends it; an answer that has ended stays as it is."""
        self._ticket.cancel()

    async def whole(self) -> list[Token]:
        """Waits for the end, and returns the tokens; raises as `pieces` does."""
        return [token async for piece in self.pieces() for token in piece.tokens]

    def _taken(self, token: Token) -> Piece:
        self.tokens += 1
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        if token.id not in self._ends:
            self._decoder.take([token.id])
        text = self._passed()
        self.text += text
        if self._stops.has_stopped:
            self.finish = "stop"
        return Piece(text, (token,))

    def _passed(self) -> str:
        text = "".join(self._fresh)
        self._fresh.clear()
        return self._stops.take(text)


def _raise_failure(ended: Ended) -> None:
    if ended.error is not None:
        raise ended.error
    if ended.finish == "cancelled":
        raise ServerError(
            "server: must run until an answer is complete; got the end of the server. Ask again "
            "when it has started.",
            code="server-stopping",
        )

"""Answer: one request to an engine, as pieces of text for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from npu_llm.engine.engine import Engine
from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.sequence import Event, Finished
from npu_llm.errors import ServerError
from npu_llm.structured_output import TokenConstraint
from npu_llm.tokenizer.detokenizer import Detokenizer

__all__ = ["Answer", "Piece"]

# Between pieces. Each is an event that costs server and client half a millisecond of the cores on
# which the model runs; 50 in a second are more than anybody reads.
_INTERVAL_S = 0.02


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
        self,
        engine: Engine,
        prompt: Sequence[int],
        params: SamplingParams,
        tokenizer: Any,
        *,
        constraint: TokenConstraint | None = None,
    ) -> None:
        """Submits a request; to be called in an event loop.

        Args:
            engine: answers it.
            prompt: tokens to continue.
            params: how; a string of `stop` is not part of the text.
            tokenizer: decodes the tokens.
            constraint: as of Engine.submit.

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
        self._ends = params.stop_token_ids
        self._detokenizer = Detokenizer(tokenizer, params.stop)
        self._told: deque[Event] = deque()
        self._is_due = True  # whether what is told is handed on at once
        self._has_come = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handle = engine.submit(prompt, params, self._listen, constraint=constraint)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yields what comes until the answer ends; leaving early ends it.

        Raises:
            ServerError: [server-stopping] if the server ends first.
            Exception: what made the engine fail.
        """
        try:
            while self.finish is None:
                tokens, end = await self._next()
                if tokens:
                    yield self._taken(tokens)
                if end is not None and self.finish is None:
                    yield self._ended(end)
        finally:
            self.close()

    def close(self) -> None:
        """Ends it; an answer that has ended stays as it is."""
        self._handle.cancel()

    async def whole(self) -> list[Token]:
        """Waits for the end, and returns the tokens; raises as `pieces` does."""
        return [token async for piece in self.pieces() for token in piece.tokens]

    def _listen(self, told: Event) -> None:
        """Called by the engine's thread."""
        self._told.append(told)
        if self._is_due or isinstance(told, Finished):
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
                self._loop.call_soon_threadsafe(self._has_come.set)

    async def _next(self) -> tuple[list[Token], Finished | None]:
        """Returns what was told: first at once, then after an interval or at the end."""
        while not self._told or not (self._is_due or isinstance(self._told[-1], Finished)):
            self._has_come.clear()
            await self._has_come.wait()
        self._is_due = False
        self._loop.call_later(_INTERVAL_S, self._become_due)
        told = [self._told.popleft() for _ in range(len(self._told))]
        end = told[-1] if isinstance(told[-1], Finished) else None
        return [one for one in told if not isinstance(one, Finished)], end

    def _become_due(self) -> None:
        self._is_due = True
        if self._told:
            self._has_come.set()

    def _taken(self, tokens: Sequence[Token]) -> Piece:
        """Decodes tokens, up to one with which a string stops the answer."""
        before, count = len(self.text), 0
        while count < len(tokens) and self.finish is None:
            self._take(tokens[count])
            count += 1
        return Piece(self.text[before:], tuple(tokens[:count]))

    def _take(self, token: Token) -> None:
        self.tokens += 1
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        if token.id not in self._ends:
            self.text += self._detokenizer.put([token.id])
        if self._detokenizer.has_stopped:
            self.finish = "stop"

    def _ended(self, told: Finished) -> Piece:
        """Returns the rest of the text; raises what kept the answer from its end."""
        self.cached_tokens = told.num_cached_tokens
        _raise_failure(told)
        text = self._detokenizer.end()
        self.text += text
        self.finish = "stop" if self._detokenizer.has_stopped else told.reason
        return Piece(text, ())


def _raise_failure(ended: Finished) -> None:
    if ended.error is not None:
        raise ended.error
    if ended.reason == "cancelled":
        raise ServerError(
            "server: must run until an answer is complete; got the end of the server. Ask again "
            "when it has started.",
            code="server-stopping",
        )

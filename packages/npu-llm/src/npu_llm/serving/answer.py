"""Answer: converts the engine's events of a request into pieces of text for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from npu_llm.engine.engine import RequestHandle
from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.sequence import Event, Finished
from npu_llm.errors import ServerError
from npu_llm.tokenizer.detokenizer import Detokenizer

__all__ = ["Answer", "Piece", "gather_pieces"]

# Seconds between pieces. Each event costs server and client half a millisecond on the model's
# cores, and 50 per second are faster than people read.
_INTERVAL_S = 0.02


@dataclass(frozen=True)
class Piece:
    """The text and tokens since the last piece.

    Attributes:
        text: may be empty, for example after half a character.
        tokens: tokens whose text has started, without those of a removed stop string.
    """

    text: str
    tokens: tuple[Token, ...]


class Answer:
    """An answer in progress, from the events of an engine.

    Attributes:
        tokens: the number of tokens so far.
        cached_tokens: the number of prompt tokens found in the cache; set at the end.
        prompt_tokens: tokens of the prompt with log probabilities, if requested.
        finish: "stop" or "length"; None before the end.
        stop: the stop string or token that ended the answer; None for another end.
        end: that token with its log probability, which is not part of the text.
        text: the text so far.
        starts: offset of each token's text, in characters.
        arrived_s, first_s, last_s: times of the request, the first token and the latest token by
            time.perf_counter; None before.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Any,
        *,
        includes_stop: bool = False,
        skips_special_tokens: bool = True,
    ) -> None:
        """Creates an answer for a request. Call it in an event loop.

        Args:
            params: the request's sampling parameters.
            tokenizer: decodes the tokens.
            includes_stop: whether a string of `stop` is part of the text.
            skips_special_tokens: whether the text omits special tokens.
        """
        self.tokens = 0
        self.cached_tokens = 0
        self.prompt_tokens: tuple[Token, ...] = ()
        self.finish: str | None = None
        self.stop: str | int | None = None
        self.end: Token | None = None
        self.text = ""
        self.starts: list[int] = []
        self.arrived_s = time.perf_counter()
        self.first_s: float | None = None
        self.last_s: float | None = None
        self._ends = params.stop_token_ids
        self._detokenizer = Detokenizer(
            tokenizer,
            params.stop,
            includes_stop=includes_stop,
            skips_special_tokens=skips_special_tokens,
        )
        self._held: deque[tuple[Token, int]] = deque()  # with the offset of their text
        self._told: deque[Event] = deque()
        self._is_due = True  # whether events are passed on at once
        self._has_come = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handle: RequestHandle | None = None

    @property
    def read_s(self) -> float:
        """Seconds until the first token; 0 before."""
        return (self.first_s or self.arrived_s) - self.arrived_s

    @property
    def written_s(self) -> float:
        """Seconds from the first token to the last one so far."""
        first = self.first_s or self.arrived_s
        return (self.last_s or first) - first

    def follow(self, handle: RequestHandle) -> None:
        """Stores the submitted request; its callbacks are `listen` and `listen_to_prompt`."""
        self._handle = handle

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yields pieces until the answer ends; closing the iterator ends the answer.

        Raises:
            ServerError: [server-stopping] if the server ends first.
            Exception: the engine's failure.
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
        """Ends the answer; one that has ended does not change."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None  # it refers to the request, whose callback refers to this

    def listen(self, told: Event) -> None:
        """Receives an event in the engine's thread."""
        self._told.append(told)
        if self._is_due or isinstance(told, Finished):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._has_come.set)

    def listen_to_prompt(self, tokens: tuple[Token, ...]) -> None:
        """Receives the prompt's tokens in the engine's thread, before the answer's first token."""
        self.prompt_tokens = tokens

    async def _next(self) -> tuple[list[Token], Finished | None]:
        """Returns new events: the first at once, others after an interval or at the end."""
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
        """Decodes tokens up to the one that completes a stop string."""
        before = len(self.text)
        for token in tokens:
            if self.finish is None:
                self._take(token)
        return Piece(self.text[before:], self._released())

    def _take(self, token: Token) -> None:
        self.tokens += 1
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        if token.id in self._ends:
            self.stop, self.end = token.id, token
            return
        self.starts.append(self._detokenizer.num_decoded)
        self._held.append((token, self.starts[-1]))
        self.text += self._detokenizer.put([token.id])
        if self._detokenizer.has_stopped:
            self.finish, self.stop = "stop", self._detokenizer.stop

    def _released(self) -> tuple[Token, ...]:
        """Returns the tokens with complete text; at the end also a token with incomplete text."""
        found = []
        while self._held:
            token, start = self._held[0]
            end = self._held[1][1] if len(self._held) > 1 else self._detokenizer.num_decoded
            is_passed = start < len(self.text) and end <= len(self.text)
            is_kept = start < len(self.text) or not self._detokenizer.has_stopped
            if not is_passed and not (self.finish is not None and is_kept):
                break
            found.append(token)
            self._held.popleft()
        return tuple(found)

    def _ended(self, told: Finished) -> Piece:
        """Returns the rest of the text; raises the error if the answer failed."""
        self.cached_tokens = told.num_cached_tokens
        _raise_failure(told)
        text = self._detokenizer.end()
        self.text += text
        self.finish, self.stop = told.reason, self.stop if told.reason == "stop" else None
        if self._detokenizer.has_stopped:
            self.finish, self.stop = "stop", self._detokenizer.stop
        return Piece(text, self._released())


async def gather_pieces(answers: Sequence[Answer]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Yields the pieces of all answers in order of arrival, each with its answer's index.

    Raises:
        Exception: the error of the first answer that fails.
    """
    if len(answers) == 1:  # without a task between, which costs as much as the rest
        async for piece in answers[0].pieces():
            yield 0, piece
        return
    queue: asyncio.Queue[tuple[int, Piece | BaseException | None]] = asyncio.Queue()

    async def follow(index: int) -> None:
        try:
            async for piece in answers[index].pieces():
                queue.put_nowait((index, piece))
            queue.put_nowait((index, None))
        except Exception as failure:  # noqa: BLE001  # raised by the consumer
            queue.put_nowait((index, failure))

    tasks = [asyncio.create_task(follow(index)) for index in range(len(answers))]
    try:
        left = len(answers)
        while left:
            index, item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        for answer in answers:
            answer.close()


def _raise_failure(ended: Finished) -> None:
    if ended.error is not None:
        raise ended.error
    if ended.reason == "cancelled":
        raise ServerError(
            "`server` must run until an answer is complete, got a shutdown. Retry after it has "
            "restarted.",
            code="server-stopping",
        )

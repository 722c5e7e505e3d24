"""Answer: one request to an engine, as pieces of text for an event loop; and several at once."""

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

# Between pieces. Each is an event that costs server and client half a millisecond of the cores on
# which the model runs; 50 in a second are more than anybody reads.
_INTERVAL_S = 0.02


@dataclass(frozen=True)
class Piece:
    """What came since the last piece.

    Attributes:
        text: what may be empty, such as for half a character.
        tokens: those whose text has begun; none of a removed stop.
    """

    text: str
    tokens: tuple[Token, ...]


class Answer:
    """An answer on its way, from the events of an engine.

    Attributes:
        tokens: how many have come.
        cached_tokens: how many tokens of the prompt did not have to be read; known at the end.
        prompt_tokens: the prompt's, with their log probabilities, if those were requested.
        finish: "stop" or "length"; None before the end.
        stop: the stop string or the token that ended it; None for none of these.
        end: that token with its log probability, which is not part of the text.
        text: all of it so far.
        starts: where the text of each token begins.
        arrived_s, first_s, last_s: by time.perf_counter: when it was asked for, and when the first
            and the latest token came; None before.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Any,
        *,
        includes_stop: bool = False,
        skips_special_tokens: bool = True,
    ) -> None:
        """Creates it for a request to be submitted; to be called in an event loop.

        Args:
            params: those of the request.
            tokenizer: decodes the tokens.
            includes_stop: whether a string of `stop` is part of the text.
            skips_special_tokens: whether the text is without special tokens.
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
        self._held: deque[tuple[Token, int]] = deque()  # with where their text begins
        self._told: deque[Event] = deque()
        self._is_due = True  # whether what is told is handed on at once
        self._has_come = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handle: RequestHandle | None = None

    @property
    def read_s(self) -> float:
        """Seconds until the first token came; 0 before."""
        return (self.first_s or self.arrived_s) - self.arrived_s

    @property
    def written_s(self) -> float:
        """Seconds from the first token to the last one so far."""
        first = self.first_s or self.arrived_s
        return (self.last_s or first) - first

    def follow(self, handle: RequestHandle) -> None:
        """Takes the submitted request, which calls `listen` and `listen_to_prompt`."""
        self._handle = handle

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
        if self._handle is not None:
            self._handle.cancel()

    def listen(self, told: Event) -> None:
        """Takes an event in the engine's thread."""
        self._told.append(told)
        if self._is_due or isinstance(told, Finished):
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
                self._loop.call_soon_threadsafe(self._has_come.set)

    def listen_to_prompt(self, tokens: tuple[Token, ...]) -> None:
        """Takes the tokens of the prompt in the engine's thread, before the first of the answer."""
        self.prompt_tokens = tokens

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
        """Returns the tokens whose text is passed on; at the end those whose text has begun."""
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
        """Returns the rest of the text; raises what kept the answer from its end."""
        self.cached_tokens = told.num_cached_tokens
        _raise_failure(told)
        text = self._detokenizer.end()
        self.text += text
        self.finish, self.stop = told.reason, self.stop if told.reason == "stop" else None
        if self._detokenizer.has_stopped:
            self.finish, self.stop = "stop", self._detokenizer.stop
        return Piece(text, self._released())


async def gather_pieces(answers: Sequence[Answer]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Yields the pieces of all answers as they come, each with its answer's index.

    Raises:
        Exception: what the first answer to fail raises.
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
            "server: must run until an answer is complete; got the end of the server. Ask again "
            "when it has started.",
            code="server-stopping",
        )

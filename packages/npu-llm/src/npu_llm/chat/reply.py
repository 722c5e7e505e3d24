"""Replies of a session: the whole one, and the stream of its pieces."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from npu_llm.chat.tool_calls import Call
    from npu_llm.engine.sampler import Token

__all__ = ["Finish", "InterruptGuard", "Reply", "ReplyStream"]

Finish = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer.

    Attributes:
        text: the answer, without special tokens.
        tokens: its token ids, including special ones.
        prompt_tokens: tokens of the whole conversation that was answered.
        prefilled_tokens: how many of them had to be read; the others were in the cache.
        time_to_first_token_s: seconds from the question to the first token; None if none came.
        tokens_per_s: rate after the first token; None if there is no second.
        finish: "stop" for an end token or a stop string, "length" for the number of tokens asked
            for or the end of the context, "cancelled" when it was stopped.
        dropped_messages: how many of the oldest messages were dropped to make room.
        verification: the outcome of comparing the programs that answered with torch, in words.
        logprobs: the tokens with their log probabilities, if those were asked for.
        tool_calls: the calls of the session's tools that the answer consists of.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    prefilled_tokens: int
    time_to_first_token_s: float | None
    tokens_per_s: float | None
    finish: Finish
    dropped_messages: int = 0
    verification: str = ""
    logprobs: tuple[Token, ...] = ()
    tool_calls: tuple[Call, ...] = ()

    @property
    def answer_tokens(self) -> int:
        """Number of the answer's tokens."""
        return len(self.tokens)


class ReplyStream:
    """An iterator over the pieces of an answer, each of which runs the steps that it needs.

    Leaving the loop early stops the answer; what was generated stays in the session. As a context
    manager it stops the answer at the end of the block. Ctrl-C stops it after the current step;
    KeyboardInterrupt is raised then.
    """

    def __init__(
        self, pieces: Generator[str, None, None], replies: list[Reply], stop: threading.Event
    ) -> None:
        """Takes the generator of the pieces.

        Args:
            pieces: the pieces.
            replies: has the whole answer once the generator has ended.
            stop: makes the generator end after the current step.
        """
        self._pieces = pieces
        self._replies = replies
        self._guard = InterruptGuard(stop)

    @property
    def reply(self) -> Reply | None:
        """The whole answer, once the stream has ended; None before."""
        return self._replies[0] if self._replies else None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            with self._guard:
                return next(self._pieces)
        except StopIteration:
            if self._guard.was_interrupted:
                raise KeyboardInterrupt from None
            raise

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops the answer."""
        self._pieces.close()


class InterruptGuard:
    """Within it, the first Ctrl-C sets an event instead of raising KeyboardInterrupt.

    After a step that Ctrl-C interrupted, the content of some caches is unknown, and nearly all time
    is spent inside steps. A second Ctrl-C raises at once. The guard does nothing outside the main
    thread, or if the program handles the signal itself.

    Attributes:
        was_interrupted: whether Ctrl-C came.
    """

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        self._is_installed = False
        self.was_interrupted = False

    def __enter__(self) -> InterruptGuard:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._is_installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_installed = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.was_interrupted:
            signal.default_int_handler(number, frame)
        self.was_interrupted = True
        self._event.set()

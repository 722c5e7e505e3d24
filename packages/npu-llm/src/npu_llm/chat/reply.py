"""What a session answers: a Reply when the answer has ended, or a ReplyStream of its pieces."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

__all__ = ["Finish", "Reply", "ReplyStream"]

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


class ReplyStream:
    """An iterator over the pieces of an answer, which its own thread generates.

    Leaving the loop early stops the answer; what was generated stays in the session. As a context
    manager it stops the answer at the end of the block.
    """

    def __init__(self, answer: Callable[[Callable[[str], object], threading.Event], Reply]) -> None:
        self._replies: list[Reply] = []
        self._pieces = _run(answer, self._replies)

    @property
    def reply(self) -> Reply | None:
        """The whole answer, once the stream has ended; None before."""
        return self._replies[0] if self._replies else None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

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
        """Stops the answer, and returns once it has stopped."""
        self._pieces.close()


# Not a method: an abandoned stream must be closed at once, not when the garbage collector finds a
# cycle of references.
def _run(
    answer: Callable[[Callable[[str], object], threading.Event], Reply], replies: list[Reply]
) -> Generator[str, None, None]:
    pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="npu-llm answer") as thread:
        answering = thread.submit(answer, pieces.put, stop)
        answering.add_done_callback(lambda _: pieces.put(None))
        try:
            while (piece := pieces.get()) is not None:
                yield piece
        finally:
            stop.set()
            wait([answering])
            if answering.exception() is None:
                replies.append(answering.result())
    answering.result()

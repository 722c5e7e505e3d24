"""Replies of a session: the complete one, the stream of its pieces, and one in progress."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from npu_llm.chat.output_parser import Delta, OutputParser
    from npu_llm.chat.tool_calls import Call
    from npu_llm.engine.sampler import Token
    from npu_llm.tokenizer.detokenizer import Detokenizer

__all__ = ["Draft", "Finish", "InterruptGuard", "Reply", "ReplyStream", "generated"]

Finish = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer.

    Attributes:
        text: the answer, without special tokens, reasoning and tool calls.
        tokens: its token ids, including special tokens.
        prompt_tokens: number of tokens in the whole conversation before it.
        prefilled_tokens: number of these that were not in the cache.
        time_to_first_token_s: seconds from the question to the first token; None without tokens.
        tokens_per_s: decode speed after the first token; None for fewer than two tokens.
        finish: "stop" for an end token or a stop string, "length" at the maximum number of tokens
            or the end of the context, "cancelled" if it was stopped.
        dropped_messages: number of old messages that were dropped to make room.
        verification: result of comparing the programs with torch, as text.
        logprobs: the tokens' log probabilities, if requested.
        tool_calls: calls of the session's tools in the answer.
        reasoning: text that the model marked as reasoning.
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
    reasoning: str = ""

    @property
    def answer_tokens(self) -> int:
        """Number of the answer's tokens."""
        return len(self.tokens)


@dataclass
class Draft:
    """An answer in progress.

    Attributes:
        text: its detokenizer.
        parser: splits its text into reasoning, content and tool calls; None for a model with
            neither reasoning nor calls.
        prompt: tokens of the prompt.
        dropped: number of messages that were dropped to make room.
        tokens: its tokens so far.
        times: time.perf_counter at each token.
        started_s: time of the request.
        finish: reason that it ended; None before.
    """

    text: Detokenizer
    parser: OutputParser | None = None
    prompt: list[int] = field(default_factory=list)
    dropped: int = 0
    tokens: list[Token] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    started_s: float = field(default_factory=time.perf_counter)
    finish: Finish | None = None

    def add(self, token: Token) -> str:
        """Adds a token; returns the text that it completes."""
        self.tokens.append(token)
        self.times.append(time.perf_counter())
        return self.text.put([token.id])

    def ends(self, *stops: threading.Event | None) -> bool:
        """Whether a stop string or one of some events ends the answer; sets `finish`."""
        if self.text.has_stopped:
            self.finish = "stop"
        elif any(stop is not None and stop.is_set() for stop in stops):
            self.finish = "cancelled"
        return self.finish is not None

    def reply(self, *, prefilled: int, verification: str) -> Reply:
        """Returns the answer; arguments are attributes of Reply."""
        times = self.times
        passed_s = times[-1] - times[0] if times else 0.0
        parsed = None if self.parser is None else self.parser.parsed
        return Reply(
            text=self.text.text if parsed is None else parsed.content,
            tokens=tuple(token.id for token in self.tokens),
            prompt_tokens=len(self.prompt),
            prefilled_tokens=prefilled,
            time_to_first_token_s=times[0] - self.started_s if times else None,
            tokens_per_s=(len(times) - 1) / passed_s if passed_s > 0 else None,
            finish=self.finish or "cancelled",
            dropped_messages=self.dropped,
            verification=verification,
            logprobs=tuple(token for token in self.tokens if token.logprob is not None),
            tool_calls=() if parsed is None else tuple(parsed.calls),
            reasoning="" if parsed is None else parsed.reasoning,
        )


def generated(generate: Callable[..., Any], **arguments: Any) -> Generator[int, None, None]:
    """Yields the tokens of transformers' generate, which runs in another thread.

    Closing the generator stops generation after the current step.

    Args:
        generate: a model's generate method.
        arguments: its arguments, without a streamer.
    """
    answer = _Streamed()
    criteria = [*(arguments.pop("stopping_criteria", None) or ()), answer.must_stop]
    with ThreadPoolExecutor(1, thread_name_prefix="npu-llm answer") as thread:
        running = thread.submit(generate, streamer=answer, stopping_criteria=criteria, **arguments)
        running.add_done_callback(lambda _: answer.tokens.put(None))
        try:
            while (token := answer.tokens.get()) is not None:
                yield token
        finally:
            answer.is_stopped = True
            wait([running])
    running.result()


class ReplyStream:
    """An iterator over the pieces of an answer's text; each `next` runs the required steps.

    `deltas` includes reasoning and tool calls. Leaving the loop early stops the answer; the text so
    far stays in the session. As a context manager, the stream stops the answer at the end of the
    block. Ctrl-C stops it after the current step, and KeyboardInterrupt is raised.
    """

    def __init__(
        self, pieces: Generator[Delta, None, None], replies: list[Reply], stop: threading.Event
    ) -> None:
        """Wraps the generator of the pieces.

        Args:
            pieces: pieces of text and other kinds.
            replies: contains the whole answer once the generator has ended.
            stop: ends the generator after the current step.
        """
        self._pieces = pieces
        self._replies = replies
        self._guard = InterruptGuard(stop)

    @property
    def reply(self) -> Reply | None:
        """The whole answer once the stream has ended; None before."""
        return self._replies[0] if self._replies else None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            delta = self._next()
            if delta.kind == "content":
                return delta.text

    def deltas(self) -> Iterator[Delta]:
        """Yields pieces of reasoning, text and complete tool calls."""
        while True:
            try:
                delta = self._next()
            except StopIteration:
                return
            yield delta

    def _next(self) -> Delta:
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
    """A context in which the first Ctrl-C sets an event instead of raising KeyboardInterrupt.

    Ctrl-C inside a step would leave the content of some caches unknown, and nearly all time is
    spent in steps. A second Ctrl-C raises at once. The guard has no effect outside the main thread,
    or if the program handles the signal itself.

    Attributes:
        was_interrupted: whether Ctrl-C was pressed.
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


class _Streamed:
    """A streamer of transformers that passes tokens to another thread and can stop generation."""

    def __init__(self) -> None:
        self.tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.is_stopped = False
        self._saw_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Receives the prompt first, then one token, or several after accepted drafts."""
        if self._saw_prompt:
            for token in value.flatten().tolist():
                self.tokens.put(token)
        self._saw_prompt = True

    def end(self) -> None:
        """No-op."""

    def must_stop(self, input_ids: torch.Tensor, _: Any, **__: Any) -> torch.Tensor:
        """A stopping criterion: True for each row, (batch,) bool, once is_stopped is set."""
        import torch

        return torch.full((input_ids.shape[0],), self.is_stopped)

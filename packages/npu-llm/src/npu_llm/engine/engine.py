"""Engine: continuous batching of requests, in a background thread or in the caller's."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from npu_llm.engine.kv_store import CacheUsage, KVStore, PagedStore, SequentialStore
from npu_llm.engine.sampler import Logits, Token, sample
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.scheduler import Scheduler
from npu_llm.engine.sequence import (
    Chunk,
    Event,
    Finished,
    FinishReason,
    OnEvent,
    Request,
    Sequence,
)
from npu_llm.errors import ContextError, OptionError, ServerError, stopping
from npu_ops.kernel_programs.program import BLOCK_SLOTS
from npu_runtime import observe

if TYPE_CHECKING:
    from npu_llm.generation.entry_model import EntryModel
    from npu_llm.structured_output import TokenConstraint

__all__ = ["CACHE_BYTES", "Engine", "EngineOptions", "EngineState", "RequestHandle"]

CACHE_BYTES = 2 << 30  # of keys and values by default


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Limits of an engine.

    Attributes:
        max_num_batched_tokens: maximum number of tokens of a step; None for no limit.
        max_num_seqs: maximum number of running requests.
        max_waiting: maximum number of waiting requests.
        cache_bytes: memory for keys and values; None for 2 GiB. There is always room for one
            sequence as long as the context, if the machine has the memory.
        max_new_tokens: maximum number of tokens of an answer; None for as many as the context has
            room for.
        is_sequential: whether requests run one at a time, and each reuses the cache of the last
            one up to the first token that differs; else prefixes of all are shared in whole blocks.
    """

    max_num_batched_tokens: int | None = 256
    max_num_seqs: int = 64
    max_waiting: int = 256
    cache_bytes: int | None = None
    max_new_tokens: int | None = None
    is_sequential: bool = False

    @classmethod
    def whole_batch(cls, num_seqs: int) -> EngineOptions:
        """Returns the options for a batch that is read in one step, with all memory for it."""
        return cls(
            max_num_batched_tokens=None,
            max_num_seqs=num_seqs,
            cache_bytes=sys.maxsize,
            is_sequential=num_seqs == 1,
        )

    def bounded(self, request: Request, context_length: int | None) -> Request:
        """Returns a request whose answer has at most `max_new_tokens` and fits into the context."""
        bounds = [request.params.max_new_tokens]
        if context_length is not None:
            bounds.append(context_length - len(request.prompt))
        if self.max_new_tokens is not None:
            bounds.append(self.max_new_tokens)
        return replace(request, params=replace(request.params, max_new_tokens=min(bounds)))

    def __post_init__(self) -> None:
        budget = self.max_num_batched_tokens
        if budget is not None and budget <= self.max_num_seqs:
            raise OptionError(
                f"`max_step_tokens` must be above the {self.max_num_seqs} running requests, so "
                f"that prompts have a share, got {budget}. Raise it, or let fewer requests run.",
                code="step-tokens",
            )


@dataclass(frozen=True)
class EngineState:
    """The current work of an engine.

    Attributes:
        running, waiting: numbers of requests.
        num_preemptions: preemptions since the start.
        num_steps, num_tokens: steps, and tokens that they processed, since the start.
        usage: of the cache.
    """

    running: int
    waiting: int
    num_preemptions: int
    num_steps: int
    num_tokens: int
    usage: CacheUsage


class RequestHandle:
    """A submitted request."""

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    def cancel(self) -> None:
        """Ends the request before the next step; a finished one is not affected."""
        self._engine._cancel(self._sequence)


class Engine:
    """Answers requests with one model.

    A server calls `start`, and submits requests from any thread. A program that waits for its
    answers iterates `generate`, or calls `step`, which runs in its own thread. Only one thread may
    run steps of the model.
    """

    def __init__(self, model: EntryModel, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self._model = model
        self._store = _store_of(model, self.options)
        budget = self.options.max_num_batched_tokens
        self._scheduler = Scheduler(
            self._store,
            max_num_batched_tokens=1 << 62 if budget is None else budget,
            max_num_seqs=self.options.max_num_seqs,
        )
        self._seq_ids = itertools.count()
        self._changed = threading.Condition()
        self._arrived: deque[Sequence] = deque()
        self._cancelled: deque[Sequence] = deque()
        self._unfinished = 0
        self._is_closing = False
        self._num_steps = self._num_tokens = 0
        # Made by start: a thread refers to the engine, and a cycle would keep the cache.
        self._thread: threading.Thread | None = None

    @property
    def store(self) -> KVStore:
        """The keys and values."""
        return self._store

    def start(self) -> Engine:
        """Starts a thread that runs the steps; returns the engine."""
        self._thread = threading.Thread(target=self._serve, name="npu-llm engine", daemon=True)
        self._thread.start()
        return self

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs; after a failure, all requests have ended with its error."""
        return self._thread is not None and self._thread.is_alive()

    def submit(
        self,
        prompt: Several[int],
        params: SamplingParams,
        on_event: OnEvent,
        *,
        constraint: TokenConstraint | None = None,
    ) -> RequestHandle:
        """Adds a request.

        Takes attributes of Request; raises the errors of `submit_all`.
        """
        request = Request(prompt=prompt, params=params, on_event=on_event, constraint=constraint)
        return self.submit_all([request])[0]

    def submit_all(self, requests: Several[Request]) -> list[RequestHandle]:
        """Adds several requests, or none of them.

        Raises:
            ContextError: [context-overflow] if a prompt and one more token do not fit into the
                model's context, [cache-blocks] if they do not fit into the cache.
            OptionError: [empty-prompt] for a prompt without tokens, [token-range] for a token id
                outside the vocabulary, [request-count] for more requests than the queue can hold.
            ServerError: [server-busy] if too many wait, [server-stopping] after `close`.
        """
        limit = self.check_count(len(requests))
        sequences = [Sequence(next(self._seq_ids), self._bounded(one)) for one in requests]
        with self._changed:
            if self._is_closing:
                raise stopping()
            if self._unfinished + len(sequences) > limit:
                raise ServerError(
                    f"server: takes at most {limit} requests at once, got one more. Retry later.",
                    code="server-busy",
                )
            self._unfinished += len(sequences)
            self._arrived += sequences
            self._changed.notify()
        return [RequestHandle(self, sequence) for sequence in sequences]

    def check_count(self, count: int) -> int:
        """Returns the maximum number of requests that run or wait at once.

        Raises:
            OptionError: [request-count] for a count above it.
        """
        limit = self.options.max_num_seqs + self.options.max_waiting
        if count > limit:
            raise OptionError(
                f"`requests` must be at most {limit:,} at once, which run or wait, got {count:,} "
                "answers to one request. Request fewer answers, or send fewer prompts.",
                code="request-count",
            )
        return limit

    def generate(
        self,
        prompt: Several[int],
        params: SamplingParams,
        *,
        constraint: TokenConstraint | None = None,
    ) -> Generator[Event, None, None]:
        """Answers a request in the caller's thread; has the arguments and errors of `submit`.

        Closing the iterator, or an exception such as KeyboardInterrupt in a step, cancels the
        request.

        Yields:
            Each Token, and a last Finished.
        """
        events: deque[Event] = deque()
        handle = self.submit(prompt, params, events.append, constraint=constraint)
        try:
            while not (events and isinstance(events[-1], Finished)):
                self.step()
                while len(events) > 1 or (events and not isinstance(events[0], Finished)):
                    yield events.popleft()
            yield events.popleft()
        finally:
            handle.cancel()
            self._update_queues()

    def answer_all(
        self,
        prompts: Several[Several[int]],
        params: SamplingParams,
        *,
        constraints: Several[TokenConstraint | None],
        on_token: Callable[[list[int], Several[int]], bool],
    ) -> list[list[int]]:
        """Answers several requests in the caller's thread, and closes the engine.

        Args:
            prompts: tokens to continue, for each request.
            params: how to continue them.
            constraints: one for each request; see `submit`.
            on_token: called after each token with the answer so far and its prompt; returns whether
                the answer ends there.

        Raises:
            NpuError: the errors of `submit`, and any error that ends a request.
        """
        answers: list[list[int]] = [[] for _ in prompts]
        events: list[deque[Event]] = [deque() for _ in prompts]
        try:
            handles = [
                self.submit(prompt, params, queue.append, constraint=constraint)
                for prompt, queue, constraint in zip(prompts, events, constraints, strict=True)
            ]
            while self.step():
                for prompt, answer, queue, handle in zip(
                    prompts, answers, events, handles, strict=True
                ):
                    while queue:
                        event = queue.popleft()
                        if isinstance(event, Token):
                            answer.append(event.id)
                            if on_token(answer, prompt):
                                handle.cancel()
                        elif event.error is not None:
                            raise event.error
        finally:
            self.close()
        return answers

    def step(self) -> bool:
        """Runs one step in the caller's thread; returns whether there was anything to do."""
        self._update_queues()
        chunks = self._scheduler.schedule()
        if not chunks:
            stuck = self._scheduler.stuck
            if stuck is not None:
                self._finish_without_room(stuck)
            return stuck is not None
        count = sum(chunk.num_tokens for chunk in chunks)
        try:
            with observe.span("serving", f"step {count} rows", rows=count, sequences=len(chunks)):
                logits = self._store.run(chunks)
        except Exception as failure:  # noqa: BLE001  # reported to its requests; others go on
            for chunk in chunks:
                self._finish(chunk.sequence, "error", failure)
            return True
        self._num_steps += 1
        self._num_tokens += count
        logits = _score_prompts(chunks, logits)
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_tokens
        self._sample([one.sequence for one in chunks if not one.sequence.num_pending], logits)
        return True

    def state(self) -> EngineState:
        """Returns the current state, approximately if a thread runs the steps."""
        scheduler = self._scheduler
        with self._changed:
            running = len(scheduler.running)
            waiting = max(self._unfinished - running, 0)
            return EngineState(
                running, waiting, scheduler.num_preemptions, self._num_steps, self._num_tokens,
                self._store.usage(),
            )  # fmt: skip

    def close(self, *, grace_s: float = 0.0) -> None:
        """Rejects further requests, waits for current ones, cancels the rest, and ends.

        Args:
            grace_s: seconds to wait.
        """
        deadline = time.perf_counter() + grace_s
        with self._changed:
            self._is_closing = True
            while self._unfinished and (left := deadline - time.perf_counter()) > 0:
                self._changed.wait(min(left, 0.05))
            self._unfinished = -1  # the thread ends
            self._changed.notify()
        if self._thread is None:
            self._end(None)
        else:
            self._thread.join()

    def _bounded(self, request: Request) -> Request:
        """Returns a checked request whose answer fits into the context."""
        length = len(request.prompt)
        if length == 0:
            raise OptionError(
                "`prompt` must have at least one token, got none. Pass some text.",
                code="empty-prompt",
            )
        self._model.check_context(length + 1)
        self._model.check_tokens(request.prompt)
        if not self._store.fits(length + 1):
            raise _no_room(length)
        return self.options.bounded(request, self._model.context_length)

    def _cancel(self, sequence: Sequence) -> None:
        sequence.is_cancelled = True
        with self._changed:
            self._cancelled.append(sequence)
            self._changed.notify()

    # In the thread that runs steps

    def _serve(self) -> None:
        failure: BaseException | None = None
        try:
            while self._wait():
                self.step()
        except BaseException as broken:  # noqa: BLE001  # reported to all requests, and is_alive
            failure = broken
            with self._changed:
                self._is_closing, self._unfinished = True, -1
        self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        """Ends all requests, and drops the cached prefixes."""
        scheduler = self._scheduler
        for sequence in [*scheduler.running, *scheduler.waiting, *self._arrived]:
            scheduler.remove(sequence)
            sequence.finish("cancelled" if failure is None else "error", failure)
        self._store.clear()

    def _wait(self) -> bool:
        """Waits for something to do; returns False when the thread must end."""
        with self._changed:
            while not (self._is_closing and self._unfinished < 0):
                scheduler = self._scheduler
                if self._arrived or self._cancelled or scheduler.running or scheduler.waiting:
                    return True
                self._changed.wait()
            return False

    def _update_queues(self) -> None:
        """Passes submitted requests to the scheduler, and ends cancelled ones."""
        with self._changed:
            while self._arrived:
                self._scheduler.add(self._arrived.popleft())
            cancelled = list(self._cancelled)
            self._cancelled.clear()
        for sequence in cancelled:
            if sequence in self._scheduler.running or sequence in self._scheduler.waiting:
                self._finish(sequence, "cancelled")

    def _finish_without_room(self, sequence: Sequence) -> None:
        """Finishes a sequence at the end of the cache; without an answer so far, with an error."""
        if sequence.num_answer_tokens:
            self._finish(sequence, "length")
        else:
            self._finish(sequence, "error", _no_room(sequence.num_pending))

    def _sample(self, sequences: list[Sequence], logits: Logits) -> None:
        """Appends a token to each sequence without pending tokens."""
        # A cancelled sequence ends before the next step.
        active = [index for index, one in enumerate(sequences) if not one.is_cancelled]
        if len(active) < len(sequences):
            sequences, logits = [sequences[index] for index in active], logits[active]
        tokens = sample([sequence.sampler for sequence in sequences], logits)
        for sequence, token in zip(sequences, tokens, strict=True):
            if isinstance(token, Exception):
                self._finish(sequence, "error", token)
                continue
            try:
                reason = sequence.append(token)
            except Exception as failure:  # noqa: BLE001  # reported to its request
                self._finish(sequence, "error", failure)
                continue
            if reason is not None:
                self._finish(sequence, reason)

    def _finish(
        self, sequence: Sequence, reason: FinishReason, error: BaseException | None = None
    ) -> None:
        self._scheduler.remove(sequence)
        sequence.finish(reason, error)
        with self._changed:
            if self._unfinished > 0:
                self._unfinished -= 1
            self._changed.notify_all()


def _score_prompts(chunks: Several[Chunk], logits: Logits) -> Logits:
    """Passes the logits of prompts on; returns those of the last chunks, one row for each."""
    if not any(chunk.sequence.scores_prompt for chunk in chunks):
        return logits
    ends = np.cumsum([chunk.num_logits for chunk in chunks])
    last = []
    for chunk, rows in zip(chunks, np.split(logits, ends[:-1]), strict=True):
        if chunk.is_last:
            last.append(rows[-1:])
        if chunk.sequence.scores_prompt:
            chunk.sequence.score(rows)
    return np.concatenate(last) if last else logits[:0]


def _no_room(num_tokens: int) -> ContextError:
    return ContextError(
        f"`cache` must have room for the prompt, got {num_tokens:,} tokens, which is more than it "
        "holds. Shorten the prompt, or start the server with more cache memory.",
        code="cache-blocks",
    )


def _store_of(model: EntryModel, options: EngineOptions) -> KVStore:
    pool = model.block_pool
    if pool is None or options.is_sequential:
        return SequentialStore(model)
    room = CACHE_BYTES if options.cache_bytes is None else options.cache_bytes
    blocks = max(room // max(pool.store.block_bytes, 1), 1)
    if options.cache_bytes is None and model.context_length is not None:
        blocks = max(blocks, -(-model.context_length // BLOCK_SLOTS) + 1)
    return PagedStore(pool, max_blocks=blocks)

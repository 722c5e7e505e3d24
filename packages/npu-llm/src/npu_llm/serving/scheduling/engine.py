"""Engine: the thread that owns a model, runs its steps, and tells tokens as they come."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from npu_llm.errors import ContextError, OptionError, ServerError
from npu_llm.serving.scheduling.choosing import choose
from npu_llm.serving.scheduling.paged_store import PagedStore
from npu_llm.serving.scheduling.request import Finish, Listener, Request
from npu_llm.serving.scheduling.scheduler import Scheduler
from npu_llm.serving.scheduling.sequence import Sequence
from npu_llm.serving.scheduling.single_store import SingleStore
from npu_llm.serving.scheduling.stores import Piece, SequenceStore, Usage
from npu_ops.kernel_programs.program import BLOCK_SLOTS
from npu_runtime import observe

if TYPE_CHECKING:
    from npu_llm.generation.step_model import StepModel

__all__ = ["CACHE_BYTES", "Engine", "EngineOptions", "EngineState", "Ticket"]

CACHE_BYTES = 2 << 30  # of keys and values, where the user names no bound


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Bounds of an engine.

    Attributes:
        most_step_tokens: how many tokens a step reads at most.
        most_running: how many requests are answered at once.
        most_waiting: how many more may wait.
        cache_bytes: how much memory keys and values may take; None for 2 GiB. There is always room
            for one sequence as long as the context, if the machine has the memory.
    """

    most_step_tokens: int = 256
    most_running: int = 64
    most_waiting: int = 256
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.most_step_tokens <= self.most_running:
            raise OptionError(
                f"max_step_tokens: must be above the {self.most_running} requests that run at "
                f"once, so that prompts have a share; got {self.most_step_tokens}. Raise it, or "
                "let fewer requests run.",
                code="step-tokens",
            )


@dataclass(frozen=True)
class EngineState:
    """What an engine is doing.

    Attributes:
        running, waiting: how many requests.
        preemptions: how often one was put back, since the start.
        steps, rows: how many steps were run, and how many tokens they read, since the start.
        usage: of the cache.
    """

    running: int
    waiting: int
    preemptions: int
    steps: int
    rows: int
    usage: Usage


@dataclass(frozen=True)
class Ticket:
    """A request that an engine has taken.

    Attributes:
        cancel: ends it before the next step; what has ended is not disturbed.
    """

    cancel: Callable[[], None] = field(repr=False)


class Engine:
    """Answers requests in a thread of its own; any thread may ask.

    Nobody else may run steps of the model meanwhile.
    """

    def __init__(self, model: StepModel, options: EngineOptions | None = None) -> None:
        """Takes a model; `start` starts the thread."""
        self.options = options or EngineOptions()
        self._model = model
        self._store = _store_of(model, self.options)
        self._scheduler = Scheduler(
            self._store,
            most_rows=self.options.most_step_tokens,
            most_sequences=self.options.most_running,
        )
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._arrived: deque[Sequence] = deque()
        self._left: deque[Sequence] = deque()
        self._unfinished = 0
        self._is_closing = False
        self._steps = self._rows = 0
        self._thread = threading.Thread(target=self._serve, name="npu-llm engine", daemon=True)

    def start(self) -> Engine:
        """Starts the thread; returns the engine."""
        self._thread.start()
        return self

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs; one that failed ended all requests with its error."""
        return self._thread.is_alive()

    def submit(self, request: Request, listener: Listener) -> Ticket:
        """Takes a request.

        Args:
            request: what is asked.
            listener: called by the engine's thread with each Token and, once, with Ended.

        Raises:
            ContextError: [context-overflow] if prompt and one more token do not fit into the
                model's context, [cache-blocks] if they do not fit into the cache.
            OptionError: [empty-prompt] for a prompt without tokens.
            ServerError: [server-busy] if too many wait, [server-stopping] after `close`.
        """
        length = len(request.prompt)
        if length == 0:
            raise OptionError(
                "prompt: must have at least one token; got none. Pass some text.",
                code="empty-prompt",
            )
        self._model.check_context(length + 1)
        if not self._store.fits(length + 1):
            raise _no_room(length)
        sequence = Sequence(next(self._numbers), _bounded(request, self._model), listener)
        with self._changed:
            if self._is_closing:
                raise ServerError(
                    "server: must be running to take a request; got one while it stops. Ask again "
                    "when it has started.",
                    code="server-stopping",
                )
            most = self.options.most_running + self.options.most_waiting
            if self._unfinished >= most:
                raise ServerError(
                    f"server: takes {most} requests at once; got one more. Ask again later.",
                    code="server-busy",
                )
            self._unfinished += 1
            self._arrived.append(sequence)
            self._changed.notify()
        return Ticket(lambda: self._cancel(sequence))

    def state(self) -> EngineState:
        """Returns what it is doing, roughly: the thread goes on meanwhile."""
        scheduler = self._scheduler
        with self._changed:
            running = len(scheduler.running)
            waiting = max(self._unfinished - running, 0)
            return EngineState(
                running, waiting, scheduler.preemptions, self._steps, self._rows,
                self._store.usage(),
            )  # fmt: skip

    def close(self, *, grace_s: float = 0.0) -> None:
        """Takes no more requests, waits for those that there are, cancels the rest, and ends.

        Args:
            grace_s: how many seconds to wait.
        """
        deadline = time.perf_counter() + grace_s
        with self._changed:
            self._is_closing = True
            while self._unfinished and (left := deadline - time.perf_counter()) > 0:
                self._changed.wait(min(left, 0.05))
            self._unfinished = -1  # nothing is waited for any more
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _cancel(self, sequence: Sequence) -> None:
        sequence.is_cancelled = True
        with self._changed:
            self._left.append(sequence)
            self._changed.notify()

    # In the thread

    def _serve(self) -> None:
        failure: BaseException | None = None
        try:
            with torch.inference_mode():
                while self._take_in():
                    self._step()
        except BaseException as broken:  # noqa: BLE001  # told to all who wait, and by is_alive
            failure = broken
            with self._changed:
                self._is_closing, self._unfinished = True, -1
        scheduler = self._scheduler
        for sequence in [*scheduler.running, *scheduler.waiting, *self._arrived]:
            scheduler.remove(sequence)
            sequence.end("cancelled" if failure is None else "error", failure)
        self._store.clear()

    def _step(self) -> None:
        pieces = self._scheduler.next_step()
        if pieces:
            self._run(pieces)
        elif (alone := self._scheduler.stuck) is not None:
            self._finish_without_room(alone)

    def _finish_without_room(self, sequence: Sequence) -> None:
        """Ends a sequence where the cache ends; one without an answer so far gets an error."""
        if sequence.answered:
            self._finish(sequence, "length")
        else:
            self._finish(sequence, "error", _no_room(sequence.pending))

    def _take_in(self) -> bool:
        """Takes what other threads asked for; waits for something to do; False at the end."""
        with self._changed:
            while True:
                if self._is_closing and self._unfinished < 0:
                    return False
                while self._arrived:
                    self._scheduler.add(self._arrived.popleft())
                left = list(self._left)
                self._left.clear()
                if left or self._scheduler.running or self._scheduler.waiting:
                    break
                self._changed.wait()
        for sequence in left:
            if sequence in self._scheduler.running or sequence in self._scheduler.waiting:
                self._finish(sequence, "cancelled")
        return True

    def _run(self, pieces: list[Piece]) -> None:
        rows = sum(piece.count for piece in pieces)
        try:
            with observe.span("serving", f"step {rows} rows", rows=rows, sequences=len(pieces)):
                logits = self._store.run(pieces)
        except Exception as failure:  # noqa: BLE001  # told to whom it concerns; others go on
            for piece in pieces:
                self._finish(piece.sequence, "error", failure)
            return
        self._steps += 1
        self._rows += rows
        for piece in pieces:
            piece.sequence.read += piece.count
        self._choose([piece.sequence for piece in pieces if not piece.sequence.pending], logits)

    def _choose(self, sequences: list[Sequence], logits: torch.Tensor) -> None:
        """Appends a token to each sequence that has been read to its end."""
        # The end of one that is cancelled is already asked for.
        there = [index for index, one in enumerate(sequences) if not one.is_cancelled]
        if len(there) < len(sequences):
            sequences, logits = [sequences[index] for index in there], logits[there]
        tokens = choose([sequence.chooser for sequence in sequences], logits)
        for sequence, token in zip(sequences, tokens, strict=True):
            if isinstance(token, Exception):
                self._finish(sequence, "error", token)
                continue
            try:
                finish = sequence.add(token)
            except Exception as failure:  # noqa: BLE001  # as above
                self._finish(sequence, "error", failure)
                continue
            if finish is not None:
                self._finish(sequence, finish)

    def _finish(
        self, sequence: Sequence, finish: Finish, error: BaseException | None = None
    ) -> None:
        self._scheduler.remove(sequence)
        sequence.end(finish, error)
        with self._changed:
            if self._unfinished > 0:
                self._unfinished -= 1
            self._changed.notify_all()


def _no_room(tokens: int) -> ContextError:
    return ContextError(
        f"cache: must have room for the prompt; got {tokens:,} tokens, which are more than it "
        "holds. Shorten the prompt, or start the server with more cache memory.",
        code="cache-blocks",
    )


def _bounded(request: Request, model: StepModel) -> Request:
    """Returns the request with an answer that ends where the context does."""
    if model.context_length is None:
        return request
    room = model.context_length - len(request.prompt)
    return replace(request, max_new_tokens=min(request.max_new_tokens, room))


def _store_of(model: StepModel, options: EngineOptions) -> SequenceStore:
    pool = model.block_pool
    if pool is None:
        return SingleStore(model)
    room = CACHE_BYTES if options.cache_bytes is None else options.cache_bytes
    blocks = max(room // max(pool.store.block_bytes, 1), 1)
    if options.cache_bytes is None and model.context_length is not None:
        blocks = max(blocks, -(-model.context_length // BLOCK_SLOTS) + 1)
    return PagedStore(pool, blocks=blocks)

"""Encoders and speech models that a server runs, one batch after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from npu_llm.errors import OptionError, check_text, stopping, too_busy
from npu_llm.speech.wave_file import read_samples

if TYPE_CHECKING:
    from npu_llm.speech.transcriber import Transcriber, Transcript
    from npu_llm.speech.transcript import TranscriptOptions
    from npu_llm.tasks.model import TaskModel
    from npu_llm.tasks.models import (
        NPUModelForFeatureExtraction,
        NPUModelForSequenceClassification,
    )

__all__ = ["Executor", "Scores", "ServedEncoder", "ServedReranker", "ServedSpeech", "Vectors"]

_Result = TypeVar("_Result")


class Executor:
    """A worker thread and a bounded queue of requests.

    Attributes:
        waiting: those requests.
        is_closed: whether it has ended.
    """

    def __init__(self, name: str, *, max_waiting: int) -> None:
        """Starts without requests.

        Args:
            name: of the thread.
            max_waiting: requests that are taken at once; more are refused.
        """
        self.waiting = 0
        self.is_closed = False
        self._max_waiting = max_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Counts a request for the block; raises ServerError [server-busy] for one too many."""
        if self.waiting >= self._max_waiting:
            raise too_busy(self._max_waiting)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Returns what a piece of work does in the thread; raises ServerError [server-stopping]."""
        if self.is_closed:
            raise stopping()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Ends it once the piece that runs is done."""
        self.is_closed = True
        self._thread.shutdown(cancel_futures=True)


# Texts of one turn in the thread: more would let others wait longer behind a long list.
_MAX_TEXTS = 64


@dataclass(frozen=True)
class Vectors:
    """What was made of texts.

    Attributes:
        values: (texts, width) float32, finite.
        tokens: how many were read.
        model: the name of the model.
    """

    values: torch.Tensor
    tokens: int
    model: str


@dataclass(frozen=True)
class Scores:
    """How well pairs of texts fit together.

    Attributes:
        values: one for each pair, the higher the better.
        tokens: how many were read.
        model: the name of the model.
    """

    values: list[float]
    tokens: int
    model: str


class _ServedTask:
    """A model that answers in a thread.

    Attributes:
        name: what clients call it.
    """

    def __init__(self, name: str, kind: str, *, max_waiting: int) -> None:
        """Starts the thread.

        Args:
            name: what clients call it.
            kind: names the thread.
            max_waiting: requests that are taken at once; more are refused.
        """
        self.name = name
        self._executor = Executor(f"npu-llm {kind}", max_waiting=max_waiting)

    @property
    def is_alive(self) -> bool:
        """Whether it can answer."""
        return not self._executor.is_closed

    @property
    def waiting(self) -> int:
        """How many requests are read or wait for it."""
        return self._executor.waiting

    def close(self, *, grace_s: float = 0.0) -> None:
        """Ends it once the batch that is read is done; `grace_s` has no other effect."""
        self._executor.close()


class _ServedTexts(_ServedTask):
    """A model of texts that answers.

    Attributes:
        name: what clients call it.
        model: the model.
    """

    def __init__(self, name: str, model: TaskModel, *, max_waiting: int = 256) -> None:
        """Takes the model.

        Args:
            name: what clients call it.
            model: with its tokenizer.
            max_waiting: requests that are taken at once; more are refused.

        Raises:
            ModelError: [missing-processor] for a model without tokenizer.
        """
        super().__init__(name, "texts", max_waiting=max_waiting)
        self.model: Any = model
        self._tokenizer = model.tokenizer  # loaded here: a missing one is told at once


class ServedEncoder(_ServedTexts):
    """An encoder that answers."""

    model: NPUModelForFeatureExtraction

    @property
    def context_length(self) -> int | None:
        """How many tokens a text has at most; None for no bound."""
        return self.model.max_seq_length

    @property
    def _width(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    async def embed(
        self, texts: Sequence[str] | Sequence[list[int]], *, dimensions: int | None = None
    ) -> Vectors:
        """Returns the vectors of texts, pooled and normalized as the checkpoint records.

        Args:
            texts: at least one; text, or tokens as they are.
            dimensions: how many numbers of each vector are wanted, for models that were trained
                for this (Matryoshka: Kusupati et al., 2022).

        Raises:
            OptionError: [text-encoding], [token-range], or [vector-size] for dimensions that the
                model was not trained for.
            ContextError: [context-overflow] for a text that is too long: none is cut.
            ServerError: [server-busy], [server-stopping].
        """
        self._check_size(dimensions)
        with self._executor.slot():
            return await self._read(texts, dimensions)

    async def _read(
        self, texts: Sequence[str] | Sequence[list[int]], dimensions: int | None
    ) -> Vectors:
        encoded = await self._executor.run(partial(self._encode, texts))
        # The longest first: one that is too long is told before any is read.
        rows = sorted(range(len(encoded)), key=lambda row: -len(encoded[row]))
        found = []
        for start in range(0, len(rows), _MAX_TEXTS):  # others take turns between
            some = rows[start : start + _MAX_TEXTS]
            batch = [encoded[row] for row in some]
            found.append(await self._executor.run(partial(self._run, batch)))
        values = torch.cat(found)[torch.tensor(rows).argsort()]
        if dimensions is not None and dimensions < self._width:
            values = values[:, :dimensions]
            if self.model.is_normalized:
                values = torch.nn.functional.normalize(values)
        return Vectors(values, sum(map(len, encoded)), self.name)

    def _encode(self, texts: Sequence[str] | Sequence[list[int]]) -> list[list[int]]:
        given: list[str] = []
        tokens: list[list[int]] = []
        for text in texts:
            if isinstance(text, str):
                given.append(check_text("input", text))
            else:
                tokens.append(text)
        return self.model.tokens_of(given, truncate=False) if given else tokens

    def _run(self, batch: list[list[int]]) -> torch.Tensor:
        values = self.model.encode_tokens(batch)
        if not bool(values.isfinite().all()):
            raise ArithmeticError(f"{self.name} made vectors that are not finite")
        return values

    def _check_size(self, dimensions: int | None) -> None:
        config = self.model.config
        trained = getattr(config, "matryoshka_dimensions", None) or ()
        is_any = bool(getattr(config, "is_matryoshka", False)) and not trained
        allowed = is_any and (dimensions or 0) < self._width
        if dimensions in (None, self._width, *trained) or allowed:
            return
        sizes = ", ".join(str(one) for one in sorted({*trained, self._width}))
        raise OptionError(
            f"dimensions: must be {sizes}, as {self.name} was trained for no other; got "
            f"{dimensions}. Omit it.",
            code="vector-size",
        )


class ServedReranker(_ServedTexts):
    """A cross-encoder that answers."""

    model: NPUModelForSequenceClassification

    @property
    def context_length(self) -> int | None:
        """How many tokens a pair has at most; None for no bound."""
        return self.model.context_length

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Returns how well the second text of each pair answers the first.

        Args:
            pairs: at least one; what the model does not take at their ends is cut.

        Raises:
            OptionError: [text-encoding].
            ModelError: [model-task] for a model of more than two classes.
            ServerError: [server-busy], [server-stopping].
        """
        for pair in pairs:
            for text in pair:
                check_text("documents", text)
        with self._executor.slot():
            values: list[float] = []
            tokens = 0
            for start in range(0, len(pairs), _MAX_TEXTS):  # others take turns between
                some = pairs[start : start + _MAX_TEXTS]
                found, count = await self._executor.run(partial(self._run, some))
                values, tokens = values + found, tokens + count
        return Scores(values, tokens, self.name)

    def _run(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[float], int]:
        values = [0.0] * len(pairs)
        for query in dict.fromkeys(one for one, _ in pairs):
            rows = [row for row, (one, _) in enumerate(pairs) if one == query]
            for ranked in self.model.rerank(query, [pairs[row][1] for row in rows]):
                values[rows[ranked.index]] = ranked.score
        encoded = self._tokenizer(
            [one for one, _ in pairs], [other for _, other in pairs],
            truncation="longest_first", max_length=self.context_length,
        )  # fmt: skip
        return values, sum(map(len, encoded["input_ids"]))


class ServedSpeech(_ServedTask):
    """A model of speech that answers.

    Attributes:
        name: what clients call it.
        context_length: None: a sound may be of any length.
    """

    context_length: int | None = None

    def __init__(self, name: str, transcriber: Transcriber, *, max_waiting: int = 256) -> None:
        """Takes the model.

        Args:
            name: what clients call it.
            transcriber: the model with what prepares its inputs.
            max_waiting: requests that are taken at once; more are refused.
        """
        super().__init__(name, "speech", max_waiting=max_waiting)
        self.transcriber = transcriber
        self._is_closing = threading.Event()

    async def transcribe(self, content: bytes, options: TranscriptOptions) -> Transcript:
        """Returns what is said in a WAV file; a call that is cancelled ends at the next token.

        Args:
            content: the file's bytes.
            options: of the transcript.

        Raises:
            OptionError: as npu_llm.speech.wave_file.read_samples does; [speech-option] for what the
                model does not know.
            ServerError: [server-busy], [server-stopping].
        """
        self.transcriber.check(options)
        left = threading.Event()
        with self._executor.slot():
            try:
                return await self._executor.run(partial(self._run, content, options, left))
            except asyncio.CancelledError:
                left.set()
                raise

    def close(self, *, grace_s: float = 0.0) -> None:
        """Ends it at the next token; `grace_s` has no other effect."""
        self._is_closing.set()
        super().close()

    def _run(self, content: bytes, options: TranscriptOptions, left: threading.Event) -> Transcript:
        sound = read_samples("file", content, rate=self.transcriber.rate)
        return self.transcriber.run(sound, options, ends=(left, self._is_closing))

"""Encoders, rerankers and speech models, which process one batch at a time."""

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
        waiting: number of queued requests.
        is_closed: whether it has ended.
    """

    def __init__(self, name: str, *, max_waiting: int) -> None:
        """Starts the thread.

        Args:
            name: name of the thread.
            max_waiting: maximum number of concurrent requests; more are refused.
        """
        self.waiting = 0
        self.is_closed = False
        self._max_waiting = max_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Counts a request for the block; raises ServerError [server-busy] above the limit."""
        if self.waiting >= self._max_waiting:
            raise too_busy(self._max_waiting)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Runs work in the thread and returns its result; raises ServerError [server-stopping]."""
        if self.is_closed:
            raise stopping()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Ends the thread after the current work."""
        self.is_closed = True
        self._thread.shutdown(cancel_futures=True)


# Texts of one batch in the thread: more would delay other requests.
_MAX_TEXTS = 64


@dataclass(frozen=True)
class Vectors:
    """Embeddings of texts.

    Attributes:
        values: (texts, width) float32, finite.
        tokens: number of tokens read.
        model: the name of the model.
    """

    values: torch.Tensor
    tokens: int
    model: str


@dataclass(frozen=True)
class Scores:
    """Relevance scores of pairs of texts.

    Attributes:
        values: one for each pair; higher is better.
        tokens: number of tokens read.
        model: the name of the model.
    """

    values: list[float]
    tokens: int
    model: str


class _ServedTask:
    """A model with a worker thread.

    Attributes:
        name: name in requests.
    """

    def __init__(self, name: str, kind: str, *, max_waiting: int) -> None:
        """Starts the thread.

        Args:
            name: name in requests.
            kind: prefix of the thread's name.
            max_waiting: maximum number of concurrent requests; more are refused.
        """
        self.name = name
        self._executor = Executor(f"npu-llm {kind}", max_waiting=max_waiting)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return not self._executor.is_closed

    @property
    def waiting(self) -> int:
        """Number of running and queued requests."""
        return self._executor.waiting

    def close(self, *, grace_s: float = 0.0) -> None:
        """Ends the thread after the current batch; `grace_s` has no effect."""
        self._executor.close()


class _ServedTexts(_ServedTask):
    """An encoder of texts.

    Attributes:
        name: name in requests.
        model: the model.
    """

    def __init__(self, name: str, model: TaskModel, *, max_waiting: int = 256) -> None:
        """Starts the thread for a model.

        Args:
            name: name in requests.
            model: the model with its tokenizer.
            max_waiting: maximum number of concurrent requests; more are refused.

        Raises:
            ModelError: [missing-processor] for a model without a tokenizer.
        """
        super().__init__(name, "texts", max_waiting=max_waiting)
        self.model: Any = model
        self._tokenizer = model.tokenizer  # loaded here to report a missing one early


class ServedEncoder(_ServedTexts):
    """An encoder for embeddings."""

    model: NPUModelForFeatureExtraction

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens of a text; None for no limit."""
        return self.model.max_seq_length

    @property
    def _width(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    async def embed(
        self, texts: Sequence[str] | Sequence[list[int]], *, dimensions: int | None = None
    ) -> Vectors:
        """Returns the embeddings of texts, with the checkpoint's pooling and normalization.

        Args:
            texts: at least one; text or token ids.
            dimensions: length of the embeddings, for models trained for several lengths
                (Matryoshka: Kusupati et al., 2022).

        Raises:
            OptionError: [text-encoding], [token-range], or [vector-size] for unsupported
                dimensions.
            ContextError: [context-overflow] for a text above the limit; texts are not truncated.
            ServerError: [server-busy], [server-stopping].
        """
        self._check_size(dimensions)
        with self._executor.slot():
            return await self._read(texts, dimensions)

    async def _read(
        self, texts: Sequence[str] | Sequence[list[int]], dimensions: int | None
    ) -> Vectors:
        encoded = await self._executor.run(partial(self._encode, texts))
        # Longest first, so that a text that is too long is reported before any is processed.
        rows = sorted(range(len(encoded)), key=lambda row: -len(encoded[row]))
        found = []
        for start in range(0, len(rows), _MAX_TEXTS):  # other requests run in between
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
            raise ArithmeticError(f"{self.name} returned embeddings that are not finite")
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
            f"`dimensions` must be {sizes} for {self.name}, got {dimensions}. Omit it.",
            code="vector-size",
        )


class ServedReranker(_ServedTexts):
    """A cross-encoder for scores."""

    model: NPUModelForSequenceClassification

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens of a pair; None for no limit."""
        return self.model.context_length

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Returns the relevance of the second text of each pair to the first.

        Args:
            pairs: at least one; texts above the model's limit are truncated.

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
            for start in range(0, len(pairs), _MAX_TEXTS):  # other requests run in between
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
    """A speech model for transcripts.

    Attributes:
        name: name in requests.
        context_length: None: audio may have any length.
    """

    context_length: int | None = None

    def __init__(self, name: str, transcriber: Transcriber, *, max_waiting: int = 256) -> None:
        """Starts the thread for a model.

        Args:
            name: name in requests.
            transcriber: the model with its processor.
            max_waiting: maximum number of concurrent requests; more are refused.
        """
        super().__init__(name, "speech", max_waiting=max_waiting)
        self.transcriber = transcriber
        self._is_closing = threading.Event()

    async def transcribe(self, content: bytes, options: TranscriptOptions) -> Transcript:
        """Transcribes a WAV file; a cancelled call ends at the next token.

        Args:
            content: the file's bytes.
            options: transcription options.

        Raises:
            OptionError: the errors of npu_llm.speech.wave_file.read_samples; [speech-option] for an
                unsupported option.
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
        """Ends the thread at the next token; `grace_s` has no effect."""
        self._is_closing.set()
        super().close()

    def _run(self, content: bytes, options: TranscriptOptions, left: threading.Event) -> Transcript:
        sound = read_samples("file", content, rate=self.transcriber.rate)
        return self.transcriber.run(sound, options, ends=(left, self._is_closing))

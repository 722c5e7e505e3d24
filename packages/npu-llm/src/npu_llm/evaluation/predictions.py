"""Predictions of a model for samples, by task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoTokenizer,
    pipeline,
)

from npu_llm.checkpoint.processors import load_beside
from npu_llm.errors import ContextError, OptionError

__all__ = ["PredictOptions", "predict"]

# Batches of texts that are sorted by length together, so that a batch has little padding.
_SORTED_BATCHES = 16
# In tokens: the maximum length of an answer; the overlap of windows of a long context; the minimum
# part of a context that must fit next to the question.
_LONGEST, _SHARED, _LEAST_CONTEXT = 30, 128, 8


@dataclass(frozen=True)
class PredictOptions:
    """Options of predictions.

    Attributes:
        path: path of tokenizer and processors.
        trust_remote_code: whether to run code that comes with the model.
        batch_size: maximum number of samples per call.
        generate: arguments of generate, for generative models.
        source_language: source language of a translation model, as in its tokenizer.
        on_samples: called between batches with the number of samples done, and their total.
    """

    path: str | Path
    trust_remote_code: bool = False
    batch_size: int = 8
    generate: Mapping[str, Any] = field(default_factory=dict)
    source_language: str | None = None
    on_samples: Callable[[int, int], None] = lambda done, total: None

    def load(self, loader: Any, what: str) -> Any:
        """Loads a tokenizer or processor, see load_beside."""
        return load_beside(loader, self.path, what, trust_remote_code=self.trust_remote_code)


def predict(
    model: Any, task: str, samples: Sequence[Mapping[str, Any]], how: PredictOptions
) -> list[Any]:
    """Returns a model's answers.

    Args:
        model: a model of one of this package's task classes.
        task: name of transformers' auto class.
        samples: validated samples, with audio as arrays and images as images.
        how: options.

    Returns:
        For each sample a text, which for a question is a part of the context; the index of a class,
        the indices of its tokens' classes, or an embedding.

    Raises:
        ModelError: [missing-processor] if the model has no tokenizer or processor, [remote-code] if
            it needs code that is not trusted.
        ContextError: [context-overflow] for a question that leaves no room for its context.
    """
    return _ASKED[task](model, samples, how)


def _vectors(model: Any, samples: Sequence[Mapping[str, Any]], how: PredictOptions) -> list[Any]:
    vectors: list[Any] = []
    for batch in _batches(samples, how, size=how.batch_size * _SORTED_BATCHES):
        texts = [sample["text"] for sample in batch]
        vectors += list(model.encode(texts, batch_size=how.batch_size, normalize=True))
    return vectors


def _transcripts(
    model: Any, samples: Sequence[Mapping[str, Any]], how: PredictOptions
) -> list[Any]:
    extractor = how.load(AutoFeatureExtractor, "a feature extractor")
    recognize = pipeline(
        "automatic-speech-recognition",
        model=model,
        feature_extractor=extractor,
        tokenizer=how.load(AutoTokenizer, "a tokenizer"),
        device="cpu",
    )
    rate = int(extractor.sampling_rate)
    arguments: dict[str, Any] = {"generate_kwargs": dict(how.generate)} if how.generate else {}
    knows_times = hasattr(getattr(model, "generation_config", None), "no_timestamps_token_id")
    answers = []
    for sample in _one_by_one(samples, how):
        # Whisper reads more than 30 s by its timestamps.
        is_long = knows_times and len(sample["audio"]) > 30 * rate
        timed = {"return_timestamps": True} if is_long else {}
        found = recognize({"raw": sample["audio"], "sampling_rate": rate}, **arguments, **timed)
        answers.append(str(found["text"]))
    return answers


def _translations(
    model: Any, samples: Sequence[Mapping[str, Any]], how: PredictOptions
) -> list[Any]:
    tokenizer = how.load(AutoTokenizer, "a tokenizer")
    if how.source_language is not None:
        tokenizer.src_lang = how.source_language
    answers: list[Any] = []
    for batch in _batches(samples, how):
        texts = [sample["source"] for sample in batch]
        given = tokenizer(texts, padding=True, return_tensors="pt")
        found = model.generate(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"], **how.generate
        )
        answers += tokenizer.batch_decode(found, skip_special_tokens=True)
    return answers


def _classes_of_texts(
    model: Any, samples: Sequence[Mapping[str, Any]], how: PredictOptions
) -> list[Any]:
    if int(model.config.num_labels) < 2:
        raise OptionError(
            f"`{model.name}` must have at least two classes for accuracy, got one that returns a "
            "number. Measure another model.",
            code="eval-task",
        )
    answers: list[Any] = []
    for batch in _batches(samples, how):
        texts = [sample["text"] for sample in batch]
        pairs = [sample.get("pair") for sample in batch]
        both = [texts, pairs] if all(pair is not None for pair in pairs) else [texts]
        given = model.tokenizer(
            *both, padding=True, truncation=model.context_length is not None,
            max_length=model.context_length, return_tensors="pt",
        )  # fmt: skip
        answers += model(**given).logits.argmax(-1).tolist()
    return answers


def _classes_of_words(
    model: Any, samples: Sequence[Mapping[str, Any]], how: PredictOptions
) -> list[Any]:
    answers = []
    for sample in _one_by_one(
        samples, how
    ):  # one by one: the tokenizer decides which token begins a word
        words = sample["tokens"]
        given = model.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        classes = model(**given).logits[0].argmax(-1).tolist()
        begins: dict[int, int] = {}
        for token, word in enumerate(given.word_ids()):
            if word is not None:
                begins.setdefault(word, token)
        answers.append([classes[begins[at]] if at in begins else -1 for at in range(len(words))])
    return answers


def _spans(model: Any, samples: Sequence[Mapping[str, Any]], how: PredictOptions) -> list[Any]:
    """Returns the words of each context from the likeliest start to the likeliest end after it."""
    tokenizer, limit = model.tokenizer, model.context_length
    answers = []
    for sample in _one_by_one(samples, how):
        question = tokenizer(sample["question"])["input_ids"]
        if limit is not None and len(question) + _LEAST_CONTEXT > limit:
            raise ContextError(
                f"`{model.name}` must be given questions that leave room in its {limit:,} tokens, "
                f"got a question of {len(question):,}. Shorten it.",
                code="context-overflow",
            )
        cut: dict[str, Any] = {} if limit is None else {
            "truncation": "only_second", "max_length": limit, "return_overflowing_tokens": True,
            "stride": min(_SHARED, (limit - len(question)) // 4),
        }  # fmt: skip
        given = tokenizer(
            sample["question"], sample["context"], padding=True, return_offsets_mapping=True,
            return_tensors="pt", **cut,
        )  # fmt: skip
        read = {name: given[name] for name in tokenizer.model_input_names if name in given}
        result = model(**read)
        windows = [
            _best_span(result.start_logits[row], result.end_logits[row], given.sequence_ids(row))
            for row in range(len(result.start_logits))
        ]
        row = max(range(len(windows)), key=lambda row: windows[row][0])
        _, first, last = windows[row]
        begin, end = int(given.offset_mapping[row][first][0]), given.offset_mapping[row][last][1]
        answers.append(sample["context"][begin : int(end)].strip())
    return answers


def _best_span(
    starts: torch.Tensor, ends: torch.Tensor, texts: Sequence[int | None]
) -> tuple[float, int, int]:
    """Returns the score of the best span within the context, and its first and last token."""
    is_context = torch.tensor([text == 1 for text in texts])
    allowed = (is_context[:, None] & is_context).triu().tril(_LONGEST - 1)
    scores = (starts[:, None] + ends).masked_fill(~allowed, -torch.inf)
    place = int(scores.argmax())
    return float(scores.flatten()[place]), place // len(texts), place % len(texts)


def _classes_of_images(
    model: Any, samples: Sequence[Mapping[str, Any]], how: PredictOptions
) -> list[Any]:
    processor = how.load(AutoImageProcessor, "an image processor")
    answers: list[Any] = []
    for batch in _batches(samples, how):
        given = processor([sample["image"] for sample in batch], return_tensors="pt")
        answers += model(pixel_values=given["pixel_values"]).logits.argmax(-1).tolist()
    return answers


def _classes_of_sounds(
    model: Any, samples: Sequence[Mapping[str, Any]], how: PredictOptions
) -> list[Any]:
    extractor = how.load(AutoFeatureExtractor, "a feature extractor")
    rate = int(extractor.sampling_rate)
    answers = []
    for sample in _one_by_one(samples, how):  # unpadded: padding changes some models' results
        given = extractor(sample["audio"], sampling_rate=rate, return_tensors="pt")
        answers.append(int(model(**given).logits[0].argmax(-1)))
    return answers


def _batches(
    samples: Sequence[Mapping[str, Any]], how: PredictOptions, *, size: int | None = None
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yields samples in batches, and reports progress."""
    how.on_samples(0, len(samples))
    for start in range(0, len(samples), size or how.batch_size):
        batch = samples[start : start + (size or how.batch_size)]
        yield batch
        how.on_samples(start + len(batch), len(samples))


def _one_by_one(
    samples: Sequence[Mapping[str, Any]], how: PredictOptions
) -> Iterator[Mapping[str, Any]]:
    for (sample,) in _batches(samples, how, size=1):
        yield sample


_ASKED: dict[str, Callable[[Any, Sequence[Mapping[str, Any]], PredictOptions], list[Any]]] = {
    "AutoModel": _vectors,
    "AutoModelForAudioClassification": _classes_of_sounds,
    "AutoModelForCTC": _transcripts,
    "AutoModelForImageClassification": _classes_of_images,
    "AutoModelForQuestionAnswering": _spans,
    "AutoModelForSeq2SeqLM": _translations,
    "AutoModelForSequenceClassification": _classes_of_texts,
    "AutoModelForSpeechSeq2Seq": _transcripts,
    "AutoModelForTokenClassification": _classes_of_words,
}

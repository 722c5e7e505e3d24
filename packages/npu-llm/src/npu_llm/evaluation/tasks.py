"""Evaluation of models on samples of their task: sample formats and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npu_llm.errors import OptionError
from npu_llm.evaluation.measures import MEASURES, measure
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = [
    "FORMS",
    "Form",
    "Kind",
    "TaskResult",
    "check_sample",
    "evaluate_task",
    "form_of",
    "label_index",
    "labels_of",
    "task_of",
]

# A file of samples refers to audio and images by path; samples in memory contain arrays and PIL
# images.
Kind = Literal["text", "texts", "words", "label", "labels", "audio", "image"]


@dataclass(frozen=True)
class Form:
    """The fields of a task's samples.

    Attributes:
        fields: name -> kind.
        optional: fields that may be omitted.
        measures: metrics, the primary one first.
    """

    fields: Mapping[str, Kind]
    measures: tuple[str, ...]
    optional: tuple[str, ...] = ()


_SPEECH = Form({"audio": "audio", "text": "text"}, ("WER", "CER"))

# transformers' auto class -> the format of its samples.
FORMS: dict[str, Form] = {
    "AutoModel": Form({"text": "text"}, ("cosine", "least cosine")),
    "AutoModelForAudioClassification": Form({"audio": "audio", "label": "label"}, ("accuracy",)),
    "AutoModelForCTC": _SPEECH,
    "AutoModelForImageClassification": Form({"image": "image", "label": "label"}, ("accuracy",)),
    "AutoModelForQuestionAnswering": Form(
        {"question": "text", "context": "text", "answer": "texts"}, ("F1", "exact match")
    ),
    "AutoModelForSeq2SeqLM": Form({"source": "text", "target": "texts"}, ("chrF", "BLEU")),
    "AutoModelForSequenceClassification": Form(
        {"text": "text", "label": "label", "pair": "text"}, ("accuracy",), ("pair",)
    ),
    "AutoModelForSpeechSeq2Seq": _SPEECH,
    "AutoModelForTokenClassification": Form({"tokens": "words", "labels": "labels"}, ("accuracy",)),
}


@public_call
def form_of(task: str) -> Form:
    """Returns the format of a task's samples.

    Args:
        task: name of transformers' auto class, such as AutoModelForCTC.

    Raises:
        OptionError: [eval-task] for a task without a metric.
    """
    if task not in FORMS:
        known = ", ".join(sorted(one.removeprefix("AutoModelFor") for one in FORMS))
        raise OptionError(
            f"evaluate_task: `model` must have one of the tasks {known}, got "
            f"{task.removeprefix('AutoModelFor')}. Compare its results with a library for that "
            "task.",
            code="eval-task",
        )
    return FORMS[task]


@public_call
def check_sample(
    sample: Any, form: Form, place: str, *, labels: Mapping[str, int] | None = None
) -> None:
    """Checks that a sample has the fields of a format.

    Args:
        sample: a mapping from field to value.
        form: the format; audio and images may be paths, arrays or images.
        place: the sample's location, for messages.
        labels: the model's classes by name, for samples with class names; None to skip the check.

    Raises:
        OptionError: [eval-data] if it does not fit.
    """
    if not isinstance(sample, Mapping):
        raise _unfit(place, form, f"a {type(sample).__name__}")
    for name, kind in form.fields.items():
        value = sample.get(name)
        if value is None and name in form.optional:
            continue
        problem = _problem(name, value, kind)
        if problem is None and labels is not None:
            problem = _unknown_label(value, kind, labels)
        if problem is not None:
            raise _unfit(place, form, problem)
    if "tokens" in form.fields and len(sample["tokens"]) != len(sample["labels"]):
        counts = f"{len(sample['tokens'])} tokens and {len(sample['labels'])} labels"
        raise _unfit(place, form, counts)


def label_index(label: str | int, labels: Mapping[str, int]) -> int:
    """Returns the index of a class given by name or index, after `check_sample`."""
    return labels[label] if isinstance(label, str) else label


def _problem(name: str, value: Any, kind: Kind) -> str | None:
    if value is None:
        return f"no {name}"
    is_text = isinstance(value, str) and bool(value.strip())
    many = value if isinstance(value, list) else []
    fits = {
        "text": is_text,
        "texts": is_text or _all(many, str),
        "words": _all(many, str),
        "label": _is_label(value),
        "labels": bool(many) and all(map(_is_label, many)),
        "audio": is_text or hasattr(value, "shape"),
        "image": is_text or hasattr(value, "size"),
    }[kind]
    return None if fits else f"{name} {_brief(value)}"


def _unknown_label(value: Any, kind: Kind, labels: Mapping[str, int]) -> str | None:
    if kind not in ("label", "labels"):
        return None
    for one in value if kind == "labels" else [value]:
        known = one in labels if isinstance(one, str) else 0 <= one < len(labels)
        if not known:
            names = list(labels)
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            return f"label {one!r} instead of a class of the model ({shown})"
    return None


def _is_label(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _all(many: list[Any], kind: type) -> bool:
    return bool(many) and all(isinstance(one, kind) for one in many)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _unfit(place: str, form: Form, received: str) -> OptionError:
    kinds = {
        "text": "a text", "texts": "a text or a list of texts", "words": "a list of words",
        "label": "a class by name or index", "labels": "a list of classes",
        "audio": "a WAV file", "image": "an image file",
    }  # fmt: skip
    wanted = ", ".join(
        f"{name} ({kinds[kind]}{', may be omitted' if name in form.optional else ''})"
        for name, kind in form.fields.items()
    )
    return OptionError(
        f"`{place}` must have {wanted}, got {received}. Correct the sample.", code="eval-data"
    )


@dataclass(frozen=True)
class TaskResult:
    """The quality of a model's predictions.

    Attributes:
        precision: name of the model's precision.
        task: name of transformers' class for the task.
        samples: number of samples.
        figures: value of each metric, the primary one first. Error rates, accuracy and F1 are
            fractions, chrF and BLEU scores 0 to 100.
        predictions: the predictions: texts, indices of classes, or embeddings.
    """

    precision: str
    task: str
    samples: int
    figures: Mapping[str, float]
    predictions: tuple[Any, ...] = field(repr=False)

    @public_call
    def loss(self, exact: TaskResult) -> float:
        """Returns the loss in points against another result, by the primary metric.

        1.0 is 100 points: an error rate of 0.12 instead of 0.10 loses 2. The loss of embeddings is
        1 minus their mean cosine.
        """
        name, value = next(iter(self.figures.items()))
        kind = MEASURES[name]
        before = 1.0 if name == "cosine" else exact.figures[name]
        return (before - value if kind.is_better_higher else value - before) * kind.points


@public_call
def evaluate_task(
    model: Any,
    samples: Sequence[Mapping[str, Any]],
    *,
    processors: str | Path,
    exact: TaskResult | None = None,
    batch_size: int = 8,
    generate: Mapping[str, Any] | None = None,
    source_language: str | None = None,
    on_samples: Callable[[int, int], None] = lambda done, total: None,
    trust_remote_code: bool = False,
) -> TaskResult:
    """Evaluates a model on samples of its task.

    Args:
        model: a model of one of this package's task classes, such as NPUModelForCTC.
        samples: mappings with the fields of npu_llm.evaluation.FORMS; sound as an array
            (samples,) at the model's rate, images as PIL images.
        processors: folder or name of the checkpoint with tokenizer and processors.
        exact: result of another precision, to compare embeddings with; by default these embeddings
            themselves.
        batch_size: maximum number of samples per call.
        generate: arguments of generate, for generative models.
        source_language: source language of a multilingual translation model.
        on_samples: called between batches with the number of samples done, and their total.
        trust_remote_code: whether to run code that comes with the checkpoint.

    Raises:
        OptionError: [eval-task] for a task without a metric, [eval-data] for an invalid sample,
            [missing-measure] if the metric's library is not installed, [batch-size] for less than
            1.
        ModelError: [missing-processor] if the model has no tokenizer or processor, [remote-code] if
            it needs code that is not trusted.
    """
    if batch_size < 1:
        raise OptionError(
            f"`batch_size` must be at least 1, got {batch_size}. Omit it for the default.",
            code="batch-size",
        )
    task = task_of(model)
    form = form_of(task)
    labels = labels_of(model.config)
    if not samples:
        raise OptionError("`samples` must contain at least one, got none. Pass some.",
                          code="eval-data")  # fmt: skip
    for number, sample in enumerate(samples, 1):
        check_sample(sample, form, f"sample {number}", labels=labels)
    # Imported late: loads transformers.
    from npu_llm.evaluation.predictions import PredictOptions, predict

    asking = PredictOptions(
        path=processors,
        trust_remote_code=trust_remote_code,
        batch_size=batch_size,
        generate=dict(generate or {}),
        source_language=source_language,
        on_samples=on_samples,
    )
    found = predict(model, task, samples, asking)
    answers = [_answer(sample, labels) for sample in samples]
    compared = found if exact is None else exact.predictions
    figures = {name: measure(name, found, answers, compared) for name in form.measures}
    return TaskResult(model.precision.name, task, len(samples), figures, tuple(found))


def task_of(model: Any) -> str:
    """Returns the name of transformers' auto class for a model's task."""
    auto = getattr(type(model), "_auto", None)
    if auto is None:
        raise OptionError(
            "evaluate_task: `model` must be of one of npu_llm's task classes, got a "
            f"{type(model).__name__}. Load it with NPUAutoModel.from_pretrained.",
            code="foreign-model",
        )
    return str(auto.__name__)


@public_call
def labels_of(config: PreTrainedConfig) -> dict[str, int]:
    """Returns a model's classes by name."""
    return {str(name): int(index) for index, name in (config.id2label or {}).items()}


def _answer(sample: Mapping[str, Any], labels: Mapping[str, int]) -> Any:
    if "labels" in sample:
        return [label_index(one, labels) for one in sample["labels"]]
    if "label" in sample:
        return label_index(sample["label"], labels)
    written = (sample[name] for name in ("target", "answer", "text") if name in sample)
    return next(written)

"""What a sample of each task has: what goes into the model, and the right answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from npu_llm.errors import OptionError
from npu_runtime.public_calls import public_call

__all__ = ["FORMS", "Form", "Kind", "check_sample", "form_of", "label_index"]

# A file of samples names sound and images by path; samples in memory hold samples and PIL images.
Kind = Literal["text", "texts", "words", "label", "labels", "audio", "image"]


@dataclass(frozen=True)
class Form:
    """The fields of a task's samples.

    Attributes:
        fields: name -> kind.
        optional: of these, those that may be omitted.
        measures: what is measured, the first is what counts.
    """

    fields: Mapping[str, Kind]
    measures: tuple[str, ...]
    optional: tuple[str, ...] = ()


_SPEECH = Form({"audio": "audio", "text": "text"}, ("WER", "CER"))

# transformers' class for a task -> the form of its samples.
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
    """Returns the form of a task's samples.

    Args:
        task: the name of transformers' class, such as AutoModelForCTC.

    Raises:
        OptionError: [eval-task] for a task without a measure.
    """
    if task not in FORMS:
        known = ", ".join(sorted(one.removeprefix("AutoModelFor") for one in FORMS))
        raise OptionError(
            f"evaluate_task: the model's task must be one of {known}; got "
            f"{task.removeprefix('AutoModelFor')}. Compare its results with a library for that "
            "task.",
            code="eval-task",
        )
    return FORMS[task]


@public_call
def check_sample(
    sample: Any, form: Form, place: str, *, labels: Mapping[str, int] | None = None
) -> None:
    """Checks that a sample has the fields of a form.

    Args:
        sample: a mapping from field to value.
        form: what it must have; sound and images may be paths, arrays or images.
        place: how messages name where it came from.
        labels: the model's classes by name, where samples name classes; None to check none.

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
    """Returns the index of a class that `check_sample` accepted, given by name or index."""
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
            return f"label {one!r}, where the model's classes are {shown}"
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
        f"{place}: a sample must have {wanted}; got {received}. Correct it.", code="eval-data"
    )

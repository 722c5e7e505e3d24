"""Metrics of tasks: error rates, chrF and BLEU, accuracy, F1 of answers, cosines of embeddings."""

from __future__ import annotations

import importlib
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from npu_llm.errors import OptionError

__all__ = ["MEASURES", "Measure", "measure"]


@dataclass(frozen=True)
class Measure:
    """The properties of a metric.

    Attributes:
        is_better_higher: whether higher values are better.
        points: points per unit; losses are reported in points.
        form: its output format.
    """

    is_better_higher: bool
    points: float
    form: str


_SHARE = Measure(True, 100.0, ".2%")
_ERRORS = Measure(False, 100.0, ".2%")
_SCORE = Measure(True, 1.0, ".2f")
_COSINE = Measure(True, 100.0, ".6f")
MEASURES: dict[str, Measure] = {
    "BLEU": _SCORE,
    "CER": _ERRORS,
    "F1": _SHARE,
    "WER": _ERRORS,
    "accuracy": _SHARE,
    "chrF": _SCORE,
    "cosine": _COSINE,
    "exact match": _SHARE,
    "least cosine": _COSINE,
}


def measure(name: str, found: Sequence[Any], answers: Sequence[Any], exact: Sequence[Any]) -> float:
    """Computes a metric.

    Args:
        name: a name of MEASURES.
        found: the model's answers.
        answers: the correct answers.
        exact: the answers in the reference precision, for cosines.

    Raises:
        OptionError: [missing-measure] if the metric's library is not installed.
    """
    if name in ("WER", "CER"):
        return _error_rate(name, found, answers)
    if name in ("chrF", "BLEU"):
        return _score(name, found, answers)
    if name == "accuracy":
        return _accuracy(found, answers)
    if name in ("F1", "exact match"):
        return _of_answers(name, found, answers)
    cosines = torch.nn.functional.cosine_similarity(torch.stack([*found]), torch.stack([*exact]))
    return float(cosines.min() if name == "least cosine" else cosines.mean())


def _error_rate(name: str, found: Sequence[str], answers: Sequence[str]) -> float:
    """Returns WER or CER by jiwer, of texts in lower case without punctuation."""
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer

    jiwer = _library("jiwer")
    plain = BasicTextNormalizer()
    # An answer of only punctuation would have no words to count errors by.
    both = [(plain(right).strip() or right, plain(one).strip()) for right, one in
            zip(answers, found, strict=True)]  # fmt: skip
    rate = jiwer.wer if name == "WER" else jiwer.cer
    return float(rate([right for right, _ in both], [one for _, one in both]))


def _score(name: str, found: Sequence[str], answers: Sequence[str | list[str]]) -> float:
    """Returns chrF or BLEU by sacrebleu, 0 to 100; samples may have several translations."""
    sacrebleu = _library("sacrebleu")
    many = [_listed(one) for one in answers]
    most = max(map(len, many))
    # Samples with fewer translations repeat the last one, which does not change the score.
    references = [[right[min(at, len(right) - 1)] for right in many] for at in range(most)]
    score = sacrebleu.corpus_chrf if name == "chrF" else sacrebleu.corpus_bleu
    return float(score(list(found), references).score)


def _accuracy(found: Sequence[Any], answers: Sequence[Any]) -> float:
    pairs = [
        (one, right)
        for given, wanted in zip(found, answers, strict=True)
        for one, right in (
            zip(given, wanted, strict=True) if isinstance(wanted, list) else [(given, wanted)]
        )
    ]
    return len([one for one, right in pairs if one == right]) / len(pairs)


def _of_answers(name: str, found: Sequence[str], answers: Sequence[str | list[str]]) -> float:
    """Returns F1 or exact match as in SQuAD: by words, against the closest correct answer."""
    one_by_one = _f1 if name == "F1" else lambda one, right: float(one == right)
    best = [
        max(one_by_one(_words(one), _words(right)) for right in _listed(rights))
        for one, rights in zip(found, answers, strict=True)
    ]
    return sum(best) / len(best)


def _f1(found: list[str], right: list[str]) -> float:
    if not found or not right:
        return float(found == right)
    common = (Counter(found) & Counter(right)).total()
    return 2 * common / (len(found) + len(right))


def _words(text: str) -> list[str]:
    """Returns the words in lower case, without punctuation and articles."""
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _listed(one_or_more: str | list[str]) -> list[str]:
    return [one_or_more] if isinstance(one_or_more, str) else one_or_more


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        raise OptionError(
            f"`evaluate_task` must have {name} for this metric, got {missing}. Run pip install "
            "'npu-llm[eval]'.",
            code="missing-measure",
        ) from missing

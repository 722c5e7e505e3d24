"""One class for each task of models that are one step."""

from __future__ import annotations

from transformers import (
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForCTC,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForObjectDetection,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForZeroShotImageClassification,
)

from npu_llm.tasks.embedding import Embeds
from npu_llm.tasks.model import TaskModel
from npu_llm.tasks.reranking import Reranks

__all__ = [
    "NPUModelForAudioClassification",
    "NPUModelForCTC",
    "NPUModelForFeatureExtraction",
    "NPUModelForImageClassification",
    "NPUModelForMaskedLM",
    "NPUModelForObjectDetection",
    "NPUModelForQuestionAnswering",
    "NPUModelForSequenceClassification",
    "NPUModelForTokenClassification",
    "NPUModelForZeroShotImageClassification",
]


class NPUModelForFeatureExtraction(Embeds, TaskModel):
    """Vectors of tokens and, by `encode`, of texts; what transformers' AutoModel returns."""

    _auto = AutoModel


class NPUModelForSequenceClassification(Reranks, TaskModel):
    """Classes of texts and, by `rerank`, how well documents answer a query."""

    _auto = AutoModelForSequenceClassification


class NPUModelForTokenClassification(TaskModel):
    """Classes of tokens, such as names of persons and places."""

    _auto = AutoModelForTokenClassification


class NPUModelForQuestionAnswering(TaskModel):
    """Where in a text the answer to a question stands."""

    _auto = AutoModelForQuestionAnswering


class NPUModelForMaskedLM(TaskModel):
    """Which tokens fit into gaps."""

    _auto = AutoModelForMaskedLM


class NPUModelForImageClassification(TaskModel):
    """Classes of images."""

    _auto = AutoModelForImageClassification
    input_modalities = ("image",)


class NPUModelForObjectDetection(TaskModel):
    """Classes and boxes of what is in an image."""

    _auto = AutoModelForObjectDetection
    input_modalities = ("image",)


class NPUModelForZeroShotImageClassification(TaskModel):
    """How well texts describe images, as CLIP and SigLIP say it."""

    _auto = AutoModelForZeroShotImageClassification
    input_modalities = ("text", "image")


class NPUModelForAudioClassification(TaskModel):
    """Classes of sounds."""

    _auto = AutoModelForAudioClassification
    input_modalities = ("audio",)


class NPUModelForCTC(TaskModel):
    """Letters of speech, frame by frame, as wav2vec 2.0 and HuBERT write them."""

    _auto = AutoModelForCTC
    input_modalities = ("audio",)

"""NPUAutoModel: reads what a checkpoint is, and loads it with the class for its task."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from transformers import AutoModel
from transformers.models.auto import modeling_auto

from npu_llm.checkpoint.facts import read_config
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ModelError
from npu_llm.models.entry import MANIFEST
from npu_runtime.public_calls import public_call

__all__ = ["TASKS", "NPUAutoModel", "find_task"]

# transformers' table of architectures -> the class here, and where it lies. The first that has a
# checkpoint's architecture counts: one of detection also stands among the features, some that look
# at images among language models, and some that translate among those that fill masks.
TASKS: dict[str, tuple[str, str]] = {
    "AutoModelForSeq2SeqLM": ("npu_llm.encoder_decoders.models", "NPUModelForSeq2SeqLM"),
    "AutoModelForImageTextToText": (
        "npu_llm.vision_language.models", "NPUModelForImageTextToText",
    ),
    "AutoModelForCausalLM": ("npu_llm.generation.model", "NPUModelForCausalLM"),
    "AutoModelForSpeechSeq2Seq": ("npu_llm.encoder_decoders.models", "NPUModelForSpeechSeq2Seq"),
    "AutoModelForSequenceClassification": (
        "npu_llm.tasks.models", "NPUModelForSequenceClassification",
    ),
    "AutoModelForTokenClassification": ("npu_llm.tasks.models", "NPUModelForTokenClassification"),
    "AutoModelForQuestionAnswering": ("npu_llm.tasks.models", "NPUModelForQuestionAnswering"),
    "AutoModelForMaskedLM": ("npu_llm.tasks.models", "NPUModelForMaskedLM"),
    "AutoModelForImageClassification": ("npu_llm.tasks.models", "NPUModelForImageClassification"),
    "AutoModelForObjectDetection": ("npu_llm.tasks.models", "NPUModelForObjectDetection"),
    "AutoModelForAudioClassification": ("npu_llm.tasks.models", "NPUModelForAudioClassification"),
    "AutoModelForCTC": ("npu_llm.tasks.models", "NPUModelForCTC"),
    "AutoModelForZeroShotImageClassification": (
        "npu_llm.tasks.models", "NPUModelForZeroShotImageClassification",
    ),
    "AutoModel": ("npu_llm.tasks.models", "NPUModelForFeatureExtraction"),
}  # fmt: skip


class NPUAutoModel:
    """Loads a checkpoint of any task."""

    @classmethod
    @public_call
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **arguments: Any) -> Any:
        """Loads a model with the class for what its config.json says that it is.

        Args:
            pretrained_model_name_or_path: as the classes take it.
            arguments: those of the class's from_pretrained.

        Returns:
            A model of the class that serves its task.

        Raises:
            ModelError: [unknown-architecture] for one that no class serves, and as the class does.
        """
        home, name = find_task(pretrained_model_name_or_path, **arguments)
        kind: Any = getattr(importlib.import_module(home), name)
        return kind.from_pretrained(pretrained_model_name_or_path, **arguments)


def find_task(pretrained_model_name_or_path: str | Path, **arguments: Any) -> tuple[str, str]:
    """Returns which class serves a checkpoint: its module and its name.

    Raises:
        ModelError: as NPUAutoModel.from_pretrained does; no weight is read.
    """
    path = Path(pretrained_model_name_or_path).expanduser()
    if (path / MANIFEST).is_file():
        about = json.loads((path / MANIFEST).read_text()).get("about", {})
        return TASKS[about.get("task", "AutoModelForCausalLM")]
    return _choose(pretrained_model_name_or_path, arguments)


def _choose(name_or_path: str | Path, arguments: dict[str, Any]) -> tuple[str, str]:
    hub = {key: arguments[key] for key in ("revision", "token") if arguments.get(key) is not None}
    source = find_source(name_or_path, gguf_file=arguments.get("gguf_file"), hub=hub)
    if source.gguf_file is not None:
        return TASKS["AutoModelForCausalLM"]
    config = read_config(source.folder)
    architecture = next(iter(config.get("architectures") or ()), None)
    for auto, home in TASKS.items():
        table = getattr(modeling_auto, auto)._model_mapping._model_mapping
        if architecture in _names(table):
            return home
    if config["model_type"] in AutoModel._model_mapping._model_mapping and architecture is None:
        return TASKS["AutoModel"]
    raise ModelError(
        f"{source.path}: its architecture must be one of transformers' for a task that is served "
        f"here; got {architecture!r}. Load it with the class for its task, such as "
        "NPUModelForFeatureExtraction.",
        code="unknown-architecture",
    )


def _names(table: Any) -> set[str]:
    found: set[str] = set()
    for value in table.values():
        found.update([value] if isinstance(value, str) else value)
    return found

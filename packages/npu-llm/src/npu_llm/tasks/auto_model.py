"""NPUAutoModel: detects a checkpoint's task, and loads it with the task's class."""

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
from npu_llm.gguf.task import find_gguf_task
from npu_llm.models.entry import MANIFEST
from npu_runtime.public_calls import public_call

__all__ = ["TASKS", "NPUAutoModel", "class_name", "find_task"]

# Tasks, as transformers' auto classes with their tables of architectures. The first table with a
# checkpoint's architecture counts: detection models are also in the table of features, some
# vision-language models among language models, and some translation models among masked language
# models.
TASKS = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageTextToText",
    "AutoModelForCausalLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModelForObjectDetection",
    "AutoModelForAudioClassification",
    "AutoModelForCTC",
    "AutoModelForZeroShotImageClassification",
    "AutoModel",
)


class NPUAutoModel:
    """Loads a checkpoint of any task."""

    @classmethod
    @public_call
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, config: Any = None, **arguments: Any
    ) -> Any:
        """Loads a model with the class for its task, which config.json determines.

        Args:
            pretrained_model_name_or_path: see the class's from_pretrained.
            config: see the class's from_pretrained.
            arguments: other arguments of the class's from_pretrained.

        Returns:
            A model of the class for its task.

        Raises:
            ModelError: [unknown-architecture] for an unsupported architecture, and the errors of
                the class.
        """
        name = class_name(find_task(pretrained_model_name_or_path, **arguments))
        kind: Any = getattr(importlib.import_module("npu_llm"), name)
        return kind.from_pretrained(pretrained_model_name_or_path, config, **arguments)


def class_name(task: str) -> str:
    """Returns the name of npu_llm's class for a task: NPUModelForCTC for AutoModelForCTC."""
    return "NPUModel" + (task.removeprefix("AutoModel") or "ForFeatureExtraction")


def find_task(pretrained_model_name_or_path: str | Path, **arguments: Any) -> str:
    """Detects the task of a checkpoint, one of TASKS; reads no weights.

    Raises:
        ModelError: the errors of NPUAutoModel.from_pretrained.
    """
    path = Path(pretrained_model_name_or_path).expanduser()
    if (path / MANIFEST).is_file():
        about = json.loads((path / MANIFEST).read_text()).get("about", {})
        return str(about.get("task", "AutoModelForCausalLM"))
    hub = {key: arguments[key] for key in ("revision", "token") if arguments.get(key) is not None}
    source = find_source(
        pretrained_model_name_or_path, gguf_file=arguments.get("gguf_file"), hub=hub
    )
    if source.gguf_file is not None:
        return find_gguf_task(source.path)
    config = read_config(source.folder)
    architecture = next(iter(config.get("architectures") or ()), None)
    coded = config.get("auto_map") or {}
    for task in TASKS:
        if task in coded or architecture in _names(
            getattr(modeling_auto, task)._model_mapping._model_mapping
        ):
            return task
    if config["model_type"] in AutoModel._model_mapping._model_mapping and architecture is None:
        return "AutoModel"
    raise ModelError(
        f"`{source.path}` must have an architecture of a supported task, got {architecture!r}. "
        "Load it with the class for its task, such as NPUModelForFeatureExtraction.",
        code="unknown-architecture",
    )


def _names(table: Any) -> set[str]:
    found: set[str] = set()
    for value in table.values():
        found.update([value] if isinstance(value, str) else value)
    return found

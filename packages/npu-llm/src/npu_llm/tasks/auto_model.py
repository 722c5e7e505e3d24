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
from npu_llm.gguf.task import find_gguf_task
from npu_llm.models.entry import MANIFEST
from npu_runtime.public_calls import public_call

__all__ = ["TASKS", "NPUAutoModel", "class_name", "find_task"]

# Tasks, each by transformers' class, whose table has the architectures. The first table with a
# checkpoint's architecture counts: models of detection are also among those of features, some that
# read images among language models, and some that translate among those that fill masks.
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
        """Loads a model with the class for what its config.json says that it is.

        Args:
            pretrained_model_name_or_path: as the classes take it.
            config: likewise.
            arguments: those of the class's from_pretrained.

        Returns:
            A model of the class that serves its task.

        Raises:
            ModelError: [unknown-architecture] for one that no class serves, and as the class does.
        """
        name = class_name(find_task(pretrained_model_name_or_path, **arguments))
        kind: Any = getattr(importlib.import_module("npu_llm"), name)
        return kind.from_pretrained(pretrained_model_name_or_path, config, **arguments)


def class_name(task: str) -> str:
    """Returns the name of npu_llm's class for a task: NPUModelForCTC for AutoModelForCTC."""
    return "NPUModel" + (task.removeprefix("AutoModel") or "ForFeatureExtraction")


def find_task(pretrained_model_name_or_path: str | Path, **arguments: Any) -> str:
    """Returns the task of a checkpoint, one of TASKS.

    Raises:
        ModelError: as NPUAutoModel.from_pretrained does. No weight is read.
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
        f"{source.path}: its architecture must be one of transformers' for a task that is served "
        f"here, got {architecture!r}. Load it with the class for its task, such as "
        "NPUModelForFeatureExtraction.",
        code="unknown-architecture",
    )


def _names(table: Any) -> set[str]:
    found: set[str] = set()
    for value in table.values():
        found.update([value] if isinstance(value, str) else value)
    return found

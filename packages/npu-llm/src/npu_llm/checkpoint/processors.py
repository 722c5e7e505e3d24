"""Tokenizers, feature extractors and image processors of a checkpoint: loaded and copied."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from npu_llm.errors import ModelError

__all__ = ["copy_processors", "load_beside", "missing_processor", "untrusted"]

# Their files, their code, and the ones that record how vectors are pooled.
_FILES = (
    "*token*", "*vocab*", "merges.txt", "*processor*", "*.spm", "spm.*", "*.model", "*.jinja",
    "*.py", "normalizer.json", "modules.json", "sentence_*.json",
    "config_sentence_transformers.json",
)  # fmt: skip
_WEIGHTS = {".safetensors", ".bin", ".gguf"}


def copy_processors(source: Path, target: Path) -> None:
    """Copies the files of a checkpoint that prepare a model's inputs.

    Args:
        source: the checkpoint's folder.
        target: an existing folder.
    """
    for pattern in _FILES:
        for file in source.glob(pattern):
            if file.is_file() and file.suffix not in _WEIGHTS:
                shutil.copyfile(file, target / file.name)
    for file in source.glob("*_Pooling/config.json"):
        (target / file.parent.name).mkdir(exist_ok=True)
        shutil.copyfile(file, target / file.parent.name / file.name)


def load_beside(
    loader: Any, path: str | Path, what: str, *, trust_remote_code: bool = False
) -> Any:
    """Loads a tokenizer, feature extractor or image processor.

    Args:
        loader: a class of transformers with from_pretrained.
        path: the model's folder or name.
        what: how the message names it, such as "a feature extractor".
        trust_remote_code: whether code that came with the model may run.

    Raises:
        ModelError: [missing-processor] if the model comes without, [remote-code] if it needs code
            that is not trusted.
    """
    try:
        # Without a decision transformers asks on the terminal.
        found = loader.from_pretrained(
            str(Path(path).expanduser()), trust_remote_code=trust_remote_code
        )
    except MemoryError:
        raise
    except Exception as failure:  # of any class: of transformers, tokenizers, the hub
        if "custom code" in str(failure):
            raise untrusted(Path(path), what) from failure
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise missing_processor(path, what, lines[0].rstrip(".")) from failure
    # Where a model comes without, transformers may make a tokenizer of no words.
    if hasattr(found, "get_vocab") and set(found.get_vocab()) <= set(found.all_special_tokens):
        raise missing_processor(path, what, "one without words")
    return found


def missing_processor(path: str | Path, what: str, received: str) -> ModelError:
    """Returns the error [missing-processor] for a model that comes without one."""
    return ModelError(
        f"`{path}` must come with {what}, which prepares its inputs, got: {received}. Get the "
        "whole checkpoint.",
        code="missing-processor",
    )


def untrusted(path: Path, what: str) -> ModelError:
    """Returns the error for code of a checkpoint that is not trusted: [remote-code]."""
    return ModelError(
        f"{path}: {what} must be one that transformers has, or its code must be trusted, got code "
        "inside the checkpoint. Read its .py files, then pass trust_remote_code=True or "
        "--trust-remote-code to run them.",
        code="remote-code",
    )

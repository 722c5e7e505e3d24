"""Tokenizers, feature extractors and image processors of a checkpoint: loading and copying."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from npu_llm.errors import ModelError

__all__ = ["copy_processors", "load_beside", "missing_processor", "untrusted"]

# Their files, their code, and files with pooling settings.
_FILES = (
    "*token*", "*vocab*", "merges.txt", "*processor*", "*.spm", "spm.*", "*.model", "*.jinja",
    "*.py", "normalizer.json", "modules.json", "sentence_*.json",
    "config_sentence_transformers.json",
)  # fmt: skip
_WEIGHTS = {".safetensors", ".bin", ".gguf"}


def copy_processors(source: Path, target: Path) -> None:
    """Copies a checkpoint's tokenizer and processor files.

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
        what: name in messages, such as "a feature extractor".
        trust_remote_code: whether to run code that comes with the model.

    Raises:
        ModelError: [missing-processor] if the model has none, [remote-code] if it needs code that
            is not trusted.
    """
    try:
        # Without a decision transformers would prompt on the terminal.
        found = loader.from_pretrained(
            str(Path(path).expanduser()), trust_remote_code=trust_remote_code
        )
    except MemoryError:
        raise
    except Exception as failure:  # of any class: from transformers, tokenizers or the hub
        if "custom code" in str(failure):
            raise untrusted(Path(path), what) from failure
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise missing_processor(path, what, lines[0].rstrip(".")) from failure
    # For a model without one, transformers may create an empty tokenizer.
    if hasattr(found, "get_vocab") and set(found.get_vocab()) <= set(found.all_special_tokens):
        raise missing_processor(path, what, "one without a vocabulary")
    return found


def missing_processor(path: str | Path, what: str, received: str) -> ModelError:
    """Returns the error [missing-processor] for a model without a tokenizer or processor."""
    return ModelError(
        f"`{path}` must come with {what}, which prepares its inputs, got: {received}. Get the "
        "whole checkpoint.",
        code="missing-processor",
    )


def untrusted(path: Path, what: str) -> ModelError:
    """Returns the error for untrusted code of a checkpoint: [remote-code]."""
    return ModelError(
        f"`{path}` must have {what} that is part of transformers, or trusted code, got code "
        "inside the checkpoint. Read its .py files, then pass trust_remote_code=True or "
        "--trust-remote-code to run them.",
        code="remote-code",
    )

"""Loads what prepares a model's inputs: tokenizers, feature extractors, image processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_llm.errors import ModelError

__all__ = ["load_beside"]


def load_beside(loader: Any, path: str | Path, what: str) -> Any:
    """Loads what prepares a model's inputs.

    Args:
        loader: a class of transformers with from_pretrained.
        path: the model's folder or name.
        what: how the message names it, such as "a feature extractor".

    Raises:
        ModelError: [missing-processor] if the model comes without.
    """
    try:
        found = loader.from_pretrained(str(Path(path).expanduser()))
    except MemoryError:
        raise
    except Exception as failure:  # of any class: of transformers, tokenizers, the hub
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise _missing(path, what, lines[0].rstrip(".")) from failure
    # Where a model comes without, transformers may make a tokenizer of no words.
    if hasattr(found, "get_vocab") and set(found.get_vocab()) <= set(found.all_special_tokens):
        raise _missing(path, what, "one without words")
    return found


def _missing(path: str | Path, what: str, received: str) -> ModelError:
    return ModelError(
        f"{path}: must come with {what}, which prepares its inputs; got: {received}. Get the whole "
        "checkpoint.",
        code="missing-processor",
    )

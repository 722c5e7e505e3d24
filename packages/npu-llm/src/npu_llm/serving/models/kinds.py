"""Which of a server's endpoints a checkpoint is for, from its files."""

from __future__ import annotations

from pathlib import Path

from npu_llm.entries.entry import MANIFEST
from npu_llm.errors import ModelError
from npu_llm.tasks.auto_model import TASKS, find_task

__all__ = ["is_encoder"]


def is_encoder(path: str | None) -> bool:
    """Whether a checkpoint makes vectors of texts; else it is taken to write text.

    Args:
        path: a checkpoint folder or file, an exported folder, or a name on the hub; None for the
            default weights.
    """
    if path is None:
        return False
    folder = Path(path).expanduser()
    if (folder / "modules.json").is_file() and not (folder / MANIFEST).is_file():
        return True  # sentence-transformers wrote it, whatever the model was before
    try:
        return find_task(path) == TASKS["AutoModel"]
    except ModelError:
        return False  # what loads it as a language model says what is wrong

"""Which of a server's endpoints a checkpoint is for, from its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from npu_llm.errors import ModelError
from npu_llm.models.entry import MANIFEST

__all__ = ["Kind", "kind_of"]

# What a model makes: text, vectors of texts, or transcripts of sounds.
Kind = Literal["text", "vectors", "transcripts"]

_TASKS: dict[str, Kind] = {
    "AutoModel": "vectors",
    "AutoModelForSpeechSeq2Seq": "transcripts",
}
# How transformers calls architectures that write text, and only those.
_WRITING = ("ForCausalLM", "LMHeadModel")


def kind_of(path: str | None) -> Kind:
    """Returns what a checkpoint makes; "text" where that cannot be told.

    transformers is imported only where a config leaves it open: that takes seconds.

    Args:
        path: a checkpoint folder or file, an exported folder, or a name on the hub; None for the
            default weights.
    """
    if path is None:
        return "text"
    folder = Path(path).expanduser()
    if (folder / "modules.json").is_file() and not (folder / MANIFEST).is_file():
        return "vectors"  # sentence-transformers wrote it, whatever the model was before
    if _writes(folder):
        return "text"
    from npu_llm.tasks.auto_model import find_task

    try:
        return _TASKS.get(find_task(path), "text")
    except ModelError:
        return "text"  # what loads it as a language model says what is wrong


def _writes(folder: Path) -> bool:
    """Whether a GGUF file's or a folder's own words say that it writes text."""
    if folder.suffix == ".gguf":
        return True
    try:
        if (folder / MANIFEST).is_file():
            about = json.loads((folder / MANIFEST).read_text())["about"]
            return bool(about.get("task", "AutoModelForCausalLM") == "AutoModelForCausalLM")
        config = json.loads((folder / "config.json").read_text())
        (architecture,) = config["architectures"]
        return str(architecture).endswith(_WRITING)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False

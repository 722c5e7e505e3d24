"""What a GGUF file's model is for, found without torch."""

from __future__ import annotations

from pathlib import Path

from npu_llm.gguf.file import GgufFile, open_gguf

__all__ = ["ENCODER_NAMES", "find_gguf_task", "pooling_of"]

# Architectures whose models make vectors and continue no text.
ENCODER_NAMES = frozenset(
    {
        "bert", "eurobert", "gemma-embedding", "jina-bert-v3", "modern-bert", "nomic-bert",
        "t5encoder",
    }
)  # fmt: skip
_POOLINGS = {1: "mean", 2: "cls", 3: "last"}


def find_gguf_task(path: Path) -> str:
    """Returns the name of transformers' class of models for what a GGUF file is made for.

    Args:
        path: the file, or any part of a split one.

    Raises:
        ModelError: as npu_llm.gguf.file.open_gguf does.
    """
    file = open_gguf(path)
    if "cls.output.weight" in file.tensors:
        return "AutoModelForSequenceClassification"
    if file.architecture in ENCODER_NAMES or pooling_of(file) is not None:
        return "AutoModel"
    return "AutoModelForCausalLM"


def pooling_of(file: GgufFile) -> str | None:
    """Returns how the vectors of tokens become a text's: "mean", "cls" or "last"; None for no way.

    Args:
        file: whose metadata says it.
    """
    kind = file.metadata.get(f"{file.architecture}.pooling_type", 0)
    return _POOLINGS.get(kind) if isinstance(kind, int) else None

"""The task of a GGUF file's model, determined without torch."""

from __future__ import annotations

from pathlib import Path

from npu_llm.gguf.file import GgufFile, open_gguf

__all__ = ["ENCODER_NAMES", "find_gguf_task", "pooling_of"]

# Architectures of embedding models, which do not generate text.
ENCODER_NAMES = frozenset(
    {
        "bert", "eurobert", "gemma-embedding", "jina-bert-v3", "modern-bert", "nomic-bert",
        "t5encoder",
    }
)  # fmt: skip
_POOLINGS = {1: "mean", 2: "cls", 3: "last"}


def find_gguf_task(path: Path) -> str:
    """Returns the name of transformers' auto class for a GGUF file's task.

    Args:
        path: the file, or any part of a split one.

    Raises:
        ModelError: the errors of npu_llm.gguf.file.open_gguf.
    """
    file = open_gguf(path)
    if "cls.output.weight" in file.tensors:
        return "AutoModelForSequenceClassification"
    if file.architecture in ENCODER_NAMES or pooling_of(file) is not None:
        return "AutoModel"
    return "AutoModelForCausalLM"


def pooling_of(file: GgufFile) -> str | None:
    """Returns the pooling of token embeddings: "mean", "cls" or "last"; None without pooling.

    Args:
        file: the file with the metadata.
    """
    kind = file.metadata.get(f"{file.architecture}.pooling_type", 0)
    return _POOLINGS.get(kind) if isinstance(kind, int) else None

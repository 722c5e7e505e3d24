"""Where the parts of a model lie in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npu_llm.errors import CaptureError

__all__ = ["EMBED", "HEAD", "LANGUAGE", "find_parts", "glue_tensors"]

EMBED, LANGUAGE, HEAD = "embed", "language", "head"


def find_parts(model: Any) -> dict[str, torch.nn.Module]:
    """Returns a model's parts: what its own code calls one after the other.

    Args:
        model: a model of transformers for images and text.

    Returns:
        By name: the embedding of tokens, the language model, the head that gives logits, and each
        other child of the model without its head, by its own name.

    Raises:
        CaptureError: [unknown-encoder] for a model that is not made of such parts.
    """
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    inner = getattr(model, model.base_model_prefix, None)
    children = {} if inner is None else dict(inner.named_children())
    languages = [name for name, child in children.items() if embed in set(child.modules())]
    if head is None or len(languages) != 1:
        raise CaptureError(
            f"{type(model).__name__}: must have a language model with an embedding of tokens, and "
            f"a head, beside its image encoder; got {', '.join(children) or 'no parts'}. Such "
            "models are not supported yet.",
            code="unknown-encoder",
        )
    language = children.pop(languages[0])
    return {**children, EMBED: embed, LANGUAGE: language, HEAD: head}


def glue_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters and buffers that the code between the parts reads, with names."""
    inside = {
        id(tensor)
        for part in find_parts(model).values()
        for tensor in (*part.parameters(), *part.buffers())
    }
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in inside:
            yield name, tensor

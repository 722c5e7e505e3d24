"""Unexpected tensors of a checkpoint, except those that a model does not need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from npu_llm.checkpoint.facts import read_config
from npu_llm.checkpoint.file_headers import read_folder_headers
from npu_llm.checkpoint.source import ModelSource

try:
    from transformers.initialization import no_init_weights
except ImportError:  # before transformers 5
    from transformers.modeling_utils import no_init_weights

__all__ = ["unexpected"]

# Buffers in old checkpoints that models compute: position tables and causal masks.
_TABLES = re.compile(r"(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|position_ids)$")
_MASKS = re.compile(r"(^|\.)(attn|attention|self_attn|self_attention)\.(bias|masked_bias)$")
_MASK_DIMS = (0, 4)


def unexpected(source: ModelSource, model: Any, names: Iterable[str]) -> list[str]:
    """Returns checkpoint tensors that a model lacks although they may affect its results.

    Tensors without effect are buffers that the model computes itself, and weights of another task,
    used by another transformers class with the same config.

    Args:
        source: the model's files.
        model: the transformers model.
        names: names reported by transformers, except those that it declares ignorable.
    """
    names = sorted(names)
    if not names or source.gguf_file is not None:
        return []
    prefix = f"{model.base_model_prefix}."

    def with_prefix(known: Iterable[str]) -> set[str]:
        """Returns names with and without the prefix of the base model."""
        found = set(known)
        return (
            found
            | {name.removeprefix(prefix) for name in found}
            | {prefix + name for name in found}
        )

    buffers = with_prefix(name for name, _ in model.named_buffers())
    headers = read_folder_headers(source.folder)

    def is_computed(name: str) -> bool:
        if _TABLES.search(name) or name in buffers:
            return True
        dims = len(headers[name].shape) if name in headers else 0
        return _MASKS.search(name) is not None and dims in _MASK_DIMS

    left = [name for name in names if not is_computed(name)]
    for other in _other_classes(source, model):
        if not left:
            break
        known = with_prefix(other.state_dict())
        left = [name for name in left if name not in known]
    return left


def _other_classes(source: ModelSource, model: Any) -> Iterator[Any]:
    """Yields models of the other classes for a config, without values."""
    if read_config(source.folder)["model_type"] not in CONFIG_MAPPING_NAMES:
        return  # a class from the checkpoint
    config = AutoConfig.from_pretrained(str(source.folder), trust_remote_code=False)
    kinds = {type(model)}
    for auto in vars(modeling_auto).values():
        mapping = getattr(auto, "_model_mapping", None)
        if mapping is None or type(config) not in mapping:
            continue
        found = mapping[type(config)]
        for kind in found if isinstance(found, tuple) else (found,):
            if kind in kinds:
                continue
            kinds.add(kind)
            with torch.device("meta"), no_init_weights():
                yield kind(config)

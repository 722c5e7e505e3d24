"""From vectors of tokens to a vector of a text."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from npu_llm.choices import POOLINGS
from npu_llm.errors import OptionError

__all__ = ["pool", "read_normalize", "read_pooling"]

_RECORDED = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


def pool(tokens: torch.Tensor, mask: torch.Tensor, how: str) -> torch.Tensor:
    """Returns one vector for each text.

    Args:
        tokens: (batch, length, width) float32.
        mask: (batch, length), 1 for tokens and 0 for padding.
        how: one of POOLINGS: the mean of the tokens, the first, the greatest of each channel, the
            last.

    Returns:
        (batch, width) float32.

    Raises:
        OptionError: [unknown-pooling].
    """
    if how not in POOLINGS:
        raise OptionError(
            f"pooling: must be one of {', '.join(POOLINGS)}; got {how!r}. Omit it for the one "
            "that the checkpoint records.",
            code="unknown-pooling",
        )
    weights = mask.to(tokens.dtype)
    if how == "mean":
        total = torch.bmm(weights[:, None], tokens)[:, 0]
        return total / weights.sum(1, keepdim=True).clamp(min=1e-9)
    if how == "max":
        return tokens.masked_fill(mask[:, :, None] == 0, -torch.inf).amax(1)
    rows = torch.arange(len(tokens))
    if how == "cls":  # the first token that is no padding
        return tokens[rows, mask.argmax(1)]
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return tokens[rows, last]


def read_pooling(folder: Path) -> str:
    """Returns what sentence-transformers recorded in a checkpoint; "mean" if nothing is there.

    Raises:
        OptionError: [unknown-pooling] for one that is recorded and not known here.
    """
    path = next(iter(sorted(folder.glob("*_Pooling/config.json"))), None)
    if path is None:
        return "mean"
    config = json.loads(path.read_text())
    named = config.get("pooling_mode")
    chosen = [named] if isinstance(named, str) else [
        key for key, value in config.items() if key.startswith("pooling_mode") and value is True
    ]  # fmt: skip
    found = [{"lasttoken": "last"}.get(key, _RECORDED.get(key, key)) for key in chosen]
    if len(found) != 1 or found[0] not in POOLINGS:
        raise OptionError(
            f"{path}: the pooling must be one of {', '.join(POOLINGS)}; got "
            f"{', '.join(found) or 'none'}. Pass pooling= yourself.",
            code="unknown-pooling",
        )
    return found[0]


def read_normalize(folder: Path) -> bool:
    """Whether the checkpoint's vectors have length 1, as sentence-transformers recorded it."""
    path = folder / "modules.json"
    if not path.is_file():
        return False
    return any(part["type"].endswith("Normalize") for part in json.loads(path.read_text()))

"""Finds out what a model keeps between steps, by running one token: keys and values, or more.

Only keys and values can become the state of a program so far. Models that keep more are not listed:
what their cache holds decides, so that future models are recognized as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from npu_llm.errors import CaptureError

__all__ = ["LayerCache", "cache_layers"]

# What models raise when their code looks for its own state in a cache of keys and values only.
_REFUSALS = (
    AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer: keys (batch, key_heads, length, key_dim), and likewise values."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


def cache_layers(model: torch.nn.Module) -> tuple[LayerCache, ...]:
    """Runs one token eagerly to see what the model caches.

    Args:
        model: a decoder-only model of transformers, on cpu, in eval mode.

    Raises:
        CaptureError: [unsupported-cache] if it keeps anything but keys and values per layer; the
            message says what.
    """
    try:
        kept = _after_one_token(model, past_key_values=DynamicCache())
    except _REFUSALS as failure:
        raise _unsupported(model, _own_state(model, failure)) from failure
    layers = getattr(kept, "layers", None) or []
    plain = bool(layers) and all(type(layer) is DynamicLayer for layer in layers)
    if not plain or any(layer.keys is None or layer.keys.dim() != 4 for layer in layers):
        raise _unsupported(model, _described(kept))
    return tuple(
        LayerCache(
            layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[1], layer.values.shape[3]
        )
        for layer in layers
    )


def _after_one_token(model: torch.nn.Module, **arguments: Any) -> Any:
    """Returns what the model returns as its cache."""
    with torch.no_grad():
        output = model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True, **arguments)
    found = getattr(output, "past_key_values", None)
    return getattr(output, "cache_params", None) if found is None else found


def _own_state(model: torch.nn.Module, refusal: Exception) -> str:
    """Describes the state of a model that does not accept a cache of keys and values only."""
    try:
        return _described(_after_one_token(model))
    except _REFUSALS:  # it does not run at all: the first error is the reason
        first = (str(refusal).strip().splitlines() or [""])[0]
        return f"{type(refusal).__name__} from its code, {first!r}"


def _described(cache: Any) -> str:
    """Describes a cache: its class, and what it holds besides keys and values."""
    layers = list(getattr(cache, "layers", None) or [])
    counts: dict[str, int] = {}
    for layer in layers:
        for name in set(_tensors_of(layer)) - {"keys", "values"}:
            counts[name] = counts.get(name, 0) + 1
    found = [f"{name} in {counts[name]} of {len(layers)} layers" for name in sorted(counts)]
    found += sorted(set(_tensors_of(cache)) - {"layers"})
    kind = type(cache).__name__
    return f"{kind} with {', '.join(found)}" if found else kind


def _tensors_of(holder: Any) -> Iterable[str]:
    """Returns the names of the attributes that hold tensors."""
    return [name for name, value in getattr(holder, "__dict__", {}).items() if _has_tensor(value)]


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return any(_has_tensor(one) for one in value.values())
    return isinstance(value, (list, tuple)) and any(_has_tensor(one) for one in value)


def _unsupported(model: torch.nn.Module, got: str) -> CaptureError:
    return CaptureError(
        f"{type(model).__name__}: its cache must be keys and values for each layer, nothing else; "
        f"got {got}. "
        "Recurrent and hybrid models are not supported yet.",
        code="unsupported-cache",
    )

"""Finds out whether a model keeps keys and values between steps, and no states.

The keys of an indexer that chooses among them count as such. It runs one token. Models that keep
more are not listed: what their cache holds decides, so that future models are recognized as well;
see npu_llm.capture.model_states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from npu_llm.cache_names import CACHE, CACHES
from npu_llm.capture.indexed_cache import is_indexed
from npu_llm.errors import CaptureError

__all__ = ["REFUSALS", "LayerCache", "cache_layers"]

# What models raise when their code looks for its own state in a cache of keys and values only.
REFUSALS = (
    AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer: keys (batch, key_heads, length, key_dim), and likewise values.

    An indexer's keys are (batch, 1, length, index_dim); index_dim is 0 in layers without one.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    index_dim: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Heads and size of each tensor that the layer keeps, in the order of a step's inputs."""
        kept = {
            "key": (self.key_heads, self.key_dim),
            "value": (self.value_heads, self.value_dim),
        }
        return kept | {"index": (1, self.index_dim)} if self.index_dim else kept


def cache_layers(model: torch.nn.Module) -> tuple[LayerCache, ...]:
    """Runs one token eagerly to see what the model caches.

    Args:
        model: a decoder-only model of transformers, on cpu, in eval mode.

    Raises:
        CaptureError: [unsupported-cache] if it keeps anything but keys and values per layer; the
            message says what.
    """
    try:
        kept = _after_one_token(model, **{CACHE: DynamicCache()})
    except REFUSALS as failure:
        kept = _own_cache(model, failure)
    layers = getattr(kept, "layers", None) or []
    is_known = bool(layers) and all(
        type(layer) is DynamicLayer or is_indexed(layer) for layer in layers
    )
    is_known = is_known and not set(_tensors_of(kept)) - {"layers"}
    if not is_known or any(layer.keys is None or layer.keys.dim() != 4 for layer in layers):
        raise _unsupported(model, _described(kept))
    return tuple(_facts(layer) for layer in layers)


def _facts(layer: Any) -> LayerCache:
    index = getattr(layer, "indexer_keys", None)
    return LayerCache(
        layer.keys.shape[1],
        layer.keys.shape[3],
        layer.values.shape[1],
        layer.values.shape[3],
        0 if index is None else index.shape[-1],
    )


def _after_one_token(model: torch.nn.Module, **arguments: Any) -> Any:
    """Returns what the model returns as its cache."""
    with torch.no_grad():
        output = model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True, **arguments)
    found = (getattr(output, name, None) for name in CACHES)
    return next((one for one in found if one is not None), None)


def _own_cache(model: torch.nn.Module, refusal: Exception) -> Any:
    """Returns the cache of a model that does not accept one of keys and values only."""
    try:
        return _after_one_token(model)
    except REFUSALS:  # it does not run at all: the first error is the reason
        first = (str(refusal).strip().splitlines() or [""])[0]
        got = f"{type(refusal).__name__} from its code, {first!r}"
        raise _unsupported(model, got) from refusal


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
        f"{type(model).__name__}: its cache must be keys and values, or states of one size for "
        f"each sequence; got {got}. Use a model of transformers that keeps one of these.",
        code="unsupported-cache",
    )

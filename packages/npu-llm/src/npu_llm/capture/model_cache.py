"""Detects a model's cache: keys and values, an indexer's keys, and recurrent states.

There is no list of models: the cache's content after one or two tokens decides, so that future
models are recognized as well. Tensors that grow are keys or values. Tensors of constant size are
states.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, cache_utils
from transformers.cache_utils import DynamicCache, DynamicLayer

from npu_llm.cache_names import CACHE, CACHES
from npu_llm.errors import CaptureError

__all__ = [
    "REFUSALS",
    "IndexedLayer",
    "LayerCache",
    "Placement",
    "StateShape",
    "StatesDifferError",
    "cache_layers",
    "find_states",
    "is_indexed",
]

Path = tuple[Any, ...]
_ROWS = 3  # of the test tokens
# The root of paths to tensors in the model's modules.
_MODULES = "modules"
# Exceptions of models whose code finds only keys and values in its cache.
REFUSALS = (
    AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
# Missing in transformers before such models existed.
_OWN_LAYER = getattr(cache_utils, "DynamicIndexedLayer", None)


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
        """Heads and size of each cached tensor, in the order of a step's inputs."""
        kept = {
            "key": (self.key_heads, self.key_dim),
            "value": (self.value_heads, self.value_dim),
        }
        return kept | {"index": (1, self.index_dim)} if self.index_dim else kept


class IndexedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys, values and the keys of an indexer, which selects the past tokens to attend to.

    transformers stores the latter as (batch, length, size) (DeepSeek V3.2, GLM DSA). A traced step
    treats them like other caches.

    Attributes:
        indexer_keys: (batch, 1, length, size).
    """

    indexer_keys: torch.Tensor

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Adds keys (batch, tokens, size); returns all of them, (batch, length, size)."""
        new = indexer_key_states.unsqueeze(1)
        self.indexer_keys = torch.cat([self.indexer_keys, new], dim=2)
        return self.indexer_keys.squeeze(1)


def is_indexed(layer: Any) -> bool:
    """Whether a transformers cache layer has an indexer's keys in addition, and nothing else."""
    if _OWN_LAYER is None or type(layer) is not _OWN_LAYER:
        return False
    return getattr(layer, "indexer_position_ids", None) is None


class StatesDifferError(Exception):
    """A cache with content other than keys and values, or states of constant size."""


@dataclass(frozen=True)
class StateShape:
    """A state: (batch, *sizes) float32, zeros before the first token."""

    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """The locations of a model's keys, values and states in its cache.

    Attributes:
        layers: the layers with keys and values.
        shapes: the states.
        argument: name of forward's cache argument.
        pattern: a cache after some tokens.
        grown: locations of key and value of each layer.
        held: locations of the states.
        takes_rows: whether a step may have several rows; RWKV's code mixes them.
    """

    layers: tuple[LayerCache, ...]
    shapes: tuple[StateShape, ...]
    argument: str
    pattern: Any
    grown: tuple[Path, ...]
    held: tuple[Path, ...]
    takes_rows: bool

    def filled(
        self, model: torch.nn.Module, caches: Sequence[torch.Tensor], states: Sequence[torch.Tensor]
    ) -> Any:
        """Returns a cache with the given tensors; stores module tensors in the modules.

        Args:
            model: the model.
            caches: key and value of each layer, (batch, heads, length, size).
            states: (batch, *sizes) each; copied, because models write into them.
        """
        given = dict(zip(self.grown, caches, strict=True))
        given |= {place: one.clone() for place, one in zip(self.held, states, strict=True)}
        for place, tensor in given.items():
            if place[0] == _MODULES:
                setattr(model.get_submodule(place[1]), place[2], tensor)
        return _with_tensors(self.pattern, given)

    def taken(
        self, model: torch.nn.Module, cache: Any
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns keys and values, and states, from a cache after a step."""
        found = dict(_tensors_of(cache))
        for place in self.held:
            if place[0] == _MODULES:
                found[place] = getattr(model.get_submodule(place[1]), place[2])
        return [found[place] for place in self.grown], [found[place] for place in self.held]


def find_states(model: torch.nn.Module) -> Placement:
    """Runs two tokens eagerly to detect the model's cache content.

    Args:
        model: a decoder-only model of transformers, on cpu, in eval mode.

    Raises:
        StatesDifferError: if the content is not keys, values and states.
        Exception: an exception of the model's code.
    """
    accepted = inspect.signature(model.forward).parameters
    argument = next((name for name in CACHES if name in accepted), None)
    if argument is None:
        raise StatesDifferError("forward takes no cache")
    rows = _ROWS
    shapes, second, cache, length = _two_tokens(model, argument, rows)
    if length != 1:  # rows were treated as tokens
        rows = 1
        shapes, second, cache, _ = _two_tokens(model, argument, rows)
    if set(shapes) != set(second):
        raise StatesDifferError("a cache that holds more after each token")
    grown: list[Path] = []
    held: list[Path] = []
    for place, tensor in second.items():
        if not tensor.is_floating_point():
            continue
        if tensor.dim() < 2 or tensor.shape[0] != rows:
            raise StatesDifferError(f"{_text(place)} of shape {tuple(tensor.shape)}")
        (held if shapes[place] == tuple(tensor.shape) else grown).append(place)
    keys = [place for place in grown if place[-1] == "keys"]
    grown = [one for place in keys for one in (place, (*place[:-1], "values"))]
    if any(place not in second or not _grew(shapes[place], second[place]) for place in grown):
        raise StatesDifferError("keys and values that do not grow by a token")
    if len(grown) + len(held) != sum(one.is_floating_point() for one in second.values()):
        raise StatesDifferError("a cache in which something besides keys and values grows")
    layers = [
        LayerCache(one.shape[1], one.shape[3], other.shape[1], other.shape[3])
        for one, other in zip(*[iter(second[place] for place in grown)] * 2, strict=True)
    ]
    shapes_held = [
        StateShape(f"state.{_text(place)}", tuple(second[place].shape[1:])) for place in held
    ]
    return Placement(
        tuple(layers),
        tuple(shapes_held),
        argument,
        cache,
        tuple(grown),
        tuple(held),
        takes_rows=rows > 1,
    )


def _two_tokens(
    model: torch.nn.Module, argument: str, rows: int
) -> tuple[dict[Path, tuple[int, ...]], dict[Path, torch.Tensor], Any, int]:
    """Returns shapes after one token, tensors and cache after two, and the number of logits."""
    before = _held_by_modules(model)
    try:
        cache, _ = _after_one_token(model, argument, rows)
        first = {**dict(_tensors_of(cache)), **_new(_held_by_modules(model), before)}
        shapes = {place: tuple(tensor.shape) for place, tensor in first.items()}
        cache, length = _step(model, argument, cache, rows)
        second = {**dict(_tensors_of(cache)), **_new(_held_by_modules(model), before)}
    finally:
        _restore_modules(model, before)
    return shapes, second, cache, length


def _grew(before: tuple[int, ...], after: torch.Tensor) -> bool:
    """Whether a tensor is (batch, heads, length, size), and one longer than before."""
    return len(before) == 4 and tuple(after.shape) == (*before[:2], before[2] + 1, before[3])


def _after_one_token(model: torch.nn.Module, argument: str, rows: int) -> tuple[Any, int]:
    """Returns the model's own cache, with the whole past instead of a window."""
    if argument == CACHE:
        cache = DynamicCache(config=model.config)
        cache.layers = [_whole(layer) for layer in cache.layers]
        try:
            return _step(model, argument, cache, rows)
        except ValueError:  # it requires a class of the model's code
            pass
    return _step(model, argument, None, rows)


def _whole(layer: Any) -> Any:
    """Returns a layer that keeps its whole past, as the step does; its mask hides the rest."""
    name = type(layer).__name__
    if name == "DynamicSlidingWindowLayer":
        return DynamicLayer()
    if name == "LinearAttentionAndSlidingWindowAttentionLayer":
        kind = cache_utils.LinearAttentionAndFullAttentionLayer
        return kind(number_of_states=layer.number_of_states)
    return layer


def _step(model: torch.nn.Module, argument: str, cache: Any, rows: int) -> tuple[Any, int]:
    """Returns the cache after a token in each row, and the number of logits per row."""
    ids = torch.zeros(rows, 1, dtype=torch.int64)
    arguments = {} if cache is None else {argument: cache}
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True, return_dict=True, **arguments)
    found = getattr(output, argument, None)
    return cache if found is None else found, output.logits.shape[1]


def _tensors_of(holder: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yields the tensors in a cache with their locations, in a fixed order."""
    if isinstance(holder, torch.Tensor):
        yield path, holder
        return
    for key, value in _parts(holder).items():
        yield from _tensors_of(value, (*path, key))


def _parts(holder: Any) -> dict[Any, Any]:
    if isinstance(holder, Mapping):
        return dict(holder)
    if isinstance(holder, (list, tuple)):
        return dict(enumerate(holder))
    return vars(holder) if _is_cache(holder) else {}


def _is_cache(holder: Any) -> bool:
    """Whether an object's class is from transformers or the model's code, and not a config."""
    kind = type(holder)
    is_known = kind.__module__.partition(".")[0] in ("transformers", "transformers_modules")
    described = (PretrainedConfig, torch.nn.Module, type)
    return is_known and hasattr(holder, "__dict__") and not isinstance(holder, described)


def _with_tensors(holder: Any, given: Mapping[Path, torch.Tensor], path: Path = ()) -> Any:
    """Returns a copy of a cache with the given tensors; other tensors are copied."""
    if isinstance(holder, torch.Tensor):
        return given[path] if path in given else holder.clone()
    if not isinstance(holder, (Mapping, list, tuple)) and not _is_cache(holder):
        return holder
    parts = {
        key: _with_tensors(value, given, (*path, key)) for key, value in _parts(holder).items()
    }
    if isinstance(holder, Mapping):
        return parts
    if isinstance(holder, (list, tuple)):
        return type(holder)(parts.values())
    made = copy.copy(holder)
    vars(made).update(parts)
    return made


def _held_by_modules(model: torch.nn.Module) -> dict[Path, Any]:
    """Returns the plain module attributes that are tensors, or may become tensors."""
    return {
        (_MODULES, path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if value is None or isinstance(value, torch.Tensor)
    }


def _new(after: Mapping[Path, Any], before: Mapping[Path, Any]) -> dict[Path, torch.Tensor]:
    """Returns the module tensors that a step has set."""
    return {
        place: value
        for place, value in after.items()
        if isinstance(value, torch.Tensor) and before.get(place) is not value
    }


def _restore_modules(model: torch.nn.Module, before: Mapping[Path, Any]) -> None:
    for place in _new(_held_by_modules(model), before):
        setattr(model.get_submodule(place[1]), place[2], before.get(place))


def _text(place: Path) -> str:
    parts = place[1:] if place[0] in (_MODULES, "layers") else place
    return ".".join(str(part) for part in parts)


def cache_layers(model: torch.nn.Module) -> tuple[LayerCache, ...]:
    """Runs one token eagerly to detect the model's cache layers.

    Args:
        model: a decoder-only model of transformers, on cpu, in eval mode.

    Raises:
        CaptureError: [unsupported-cache] if the cache has more than keys and values per layer; the
            message contains the details.
    """
    try:
        kept = _cache_after_a_token(model, **{CACHE: DynamicCache()})
    except REFUSALS as failure:
        kept = _own_cache(model, failure)
    layers = getattr(kept, "layers", None) or []
    is_known = bool(layers) and all(
        type(layer) is DynamicLayer or is_indexed(layer) for layer in layers
    )
    is_known = is_known and not set(_tensor_names(kept)) - {"layers"}
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


def _cache_after_a_token(model: torch.nn.Module, **arguments: Any) -> Any:
    """Returns the cache in the model's output."""
    with torch.no_grad():
        output = model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True, **arguments)
    found = (getattr(output, name, None) for name in CACHES)
    return next((one for one in found if one is not None), None)


def _own_cache(model: torch.nn.Module, refusal: Exception) -> Any:
    """Returns the cache of a model that does not accept one with keys and values only."""
    try:
        return _cache_after_a_token(model)
    except REFUSALS:  # it does not run at all: the first error is the cause
        first = (str(refusal).strip().splitlines() or [""])[0]
        got = f"{type(refusal).__name__} from its code, {first!r}"
        raise _unsupported(model, got) from refusal


def _described(cache: Any) -> str:
    """Describes a cache: its class, and its content besides keys and values."""
    layers = list(getattr(cache, "layers", None) or [])
    counts: dict[str, int] = {}
    for layer in layers:
        for name in set(_tensor_names(layer)) - {"keys", "values"}:
            counts[name] = counts.get(name, 0) + 1
    found = [f"{name} in {counts[name]} of {len(layers)} layers" for name in sorted(counts)]
    found += sorted(set(_tensor_names(cache)) - {"layers"})
    kind = type(cache).__name__
    return f"{kind} with {', '.join(found)}" if found else kind


def _tensor_names(holder: Any) -> list[str]:
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
        f"`{type(model).__name__}` must cache keys and values, or states of constant size per "
        f"sequence, got {got}. Use a transformers model with such a cache.",
        code="unsupported-cache",
    )

"""Finds what a recurrent or hybrid model keeps between steps: states beside keys and values.

The model makes its own cache, whatever class that is, and runs two tokens. What grows is a key or a
value, what keeps its size is a state. The cache after these tokens is the pattern for each step:
the same objects, with other tensors in the places that were found.
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
from npu_llm.capture.cache_facts import LayerCache

__all__ = ["Placement", "StateShape", "StatesDifferError", "find_states"]

Path = tuple[Any, ...]
_ROWS = 3  # of the tokens that are tried
# The root of paths to tensors that the model's modules hold themselves.
_MODULES = "modules"


class StatesDifferError(Exception):
    """What a model keeps is neither keys and values nor states of one size."""


@dataclass(frozen=True)
class StateShape:
    """A state: (batch, *sizes) float32, zeros before the first token."""

    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Where a model's keys, values and states lie in its cache.

    Attributes:
        layers: the layers with keys and values.
        shapes: the states.
        argument: the argument of forward that takes the cache.
        pattern: a cache after some tokens.
        grown: the places of key and value of each layer.
        held: the places of the states.
        takes_rows: whether a step may have several rows; the code of RWKV mixes them.
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
        """Returns a cache with the given tensors; puts those of modules where these look.

        Args:
            model: the model.
            caches: key and value of each layer, (batch, heads, length, size).
            states: (batch, *sizes) each; copied, since models write into them.
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
    """Runs two tokens eagerly to see what the model keeps.

    Args:
        model: a decoder-only model of transformers, on cpu, in eval mode.

    Raises:
        StatesDifferError: if that is something else than keys, values and states.
        Exception: what the model's own code raises.
    """
    accepted = inspect.signature(model.forward).parameters
    argument = next((name for name in CACHES if name in accepted), None)
    if argument is None:
        raise StatesDifferError("forward takes no cache")
    rows = _ROWS
    shapes, second, cache, length = _two_tokens(model, argument, rows)
    if length != 1:  # rows were taken for tokens
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
        raise StatesDifferError("a cache that grows by something else than keys and values")
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
    """Returns shapes after one token, tensors and cache after two, and how many logits came."""
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
    """Returns the model's own cache, with its whole past where it would keep a window."""
    if argument == CACHE:
        cache = DynamicCache(config=model.config)
        cache.layers = [_whole(layer) for layer in cache.layers]
        try:
            return _step(model, argument, cache, rows)
        except ValueError:  # it asks for a class of its own
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
    """Returns the cache after a token of each row, and how many logits a row has."""
    ids = torch.zeros(rows, 1, dtype=torch.int64)
    arguments = {} if cache is None else {argument: cache}
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True, return_dict=True, **arguments)
    found = getattr(output, argument, None)
    return cache if found is None else found, output.logits.shape[1]


def _tensors_of(holder: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yields the tensors in a cache with their places, in a fixed order."""
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
    """Whether an object is of transformers' or the model's own code, and not its description."""
    kind = type(holder)
    is_known = kind.__module__.partition(".")[0] in ("transformers", "transformers_modules")
    described = (PretrainedConfig, torch.nn.Module, type)
    return is_known and hasattr(holder, "__dict__") and not isinstance(holder, described)


def _with_tensors(holder: Any, given: Mapping[Path, torch.Tensor], path: Path = ()) -> Any:
    """Returns a copy of a cache with the given tensors; all others are copied."""
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
    """Returns the plain attributes of modules that are tensors, or may become one."""
    return {
        (_MODULES, path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if value is None or isinstance(value, torch.Tensor)
    }


def _new(after: Mapping[Path, Any], before: Mapping[Path, Any]) -> dict[Path, torch.Tensor]:
    """Returns the tensors of modules that a step has put there."""
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

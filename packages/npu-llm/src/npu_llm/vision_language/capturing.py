"""Traces the parts of a model for images and text as graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from npu_llm.cache_names import CACHE
from npu_llm.errors import CaptureError
from npu_llm.part_programs.tracing import Example, TracedPart, trace_part
from npu_llm.vision_language.calls import call_again, outline
from npu_llm.vision_language.grids import packed_attention
from npu_llm.vision_language.observing import SeenPart
from npu_llm.vision_language.places import LANGUAGE, find_parts

__all__ = ["TracedModel", "trace_model"]

# No model has a dimension of one of these sizes, so a size that tracing fixed is noticed.
_BATCH, _TOKENS, _PAST = 11, 13, 17
_HIDDEN = "hidden_states"
_EMBEDS, _POSITIONS, _MASK = "inputs_embeds", "position_ids", "attention_mask"


@dataclass(frozen=True)
class TracedModel:
    """The parts of a model as graphs.

    Attributes:
        parts: the graphs; the language model's also has its cache as inputs and results.
        cache_names: a name for the key and the value of each layer of the language model.
        cache_shapes: heads and size of each.
    """

    parts: tuple[TracedPart, ...]
    cache_names: tuple[str, ...]
    cache_shapes: tuple[tuple[int, int], ...]


def trace_model(model: Any, seen: Mapping[str, SeenPart]) -> TracedModel:
    """Traces each part of a model with what it is called with.

    Args:
        model: a model of transformers for images and text, on cpu, in eval mode.
        seen: how its parts are called.

    Raises:
        CaptureError: if one cannot be traced, or [unsupported-cache] if the language model keeps
            anything but keys and values, or [unknown-encoder] if it takes other inputs than
            embeddings, a mask and positions.
    """
    modules = find_parts(model)
    parts = [
        _trace_stateless(modules[name], name, part)
        for name, part in seen.items()
        if name != LANGUAGE
    ]
    shapes = _cache_shapes(modules[LANGUAGE], seen[LANGUAGE])
    language, names = _trace_language(modules[LANGUAGE], seen[LANGUAGE], shapes)
    return TracedModel((*parts, language), names, shapes)


def _trace_stateless(module: torch.nn.Module, name: str, seen: SeenPart) -> TracedPart:
    given = {key: example.tensor for key, example in seen.examples.items()}
    with packed_attention(module, given) as beside:

        def run(tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
            result = type(module).forward(module, **call_again(tensors), **seen.choices, **beside)
            return outline(result)[1]

        count = len(list(_leaves(seen.result.tree)))
        outputs = [f"{name}.{index}" for index in range(count)]
        return trace_part(module, name, run, examples=seen.examples, outputs=outputs)


def _leaves(tree: Any) -> Iterator[int]:
    if isinstance(tree, int):
        yield tree
    elif isinstance(tree, (dict, list)):
        for one in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(one)


def _trace_language(
    module: torch.nn.Module, seen: SeenPart, shapes: Sequence[tuple[int, int]]
) -> tuple[TracedPart, tuple[str, ...]]:
    examples = _language_examples(module, seen)
    names = tuple(f"past.{i // 2}.{('key', 'value')[i % 2]}" for i in range(len(shapes)))
    for name, (heads, size) in zip(names, shapes, strict=True):
        examples[name] = Example(torch.zeros(_BATCH, heads, _PAST, size), (0, 2))

    def run(tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        given = {key: tensors[key] for key in tensors if key not in names}
        cache = _filled([tensors[name] for name in names])
        output = module(**call_again(given), use_cache=True, **{CACHE: cache})
        return [output.last_hidden_state, *_kept(cache)]

    traced = trace_part(
        module, LANGUAGE, run, examples=examples, outputs=[_HIDDEN, *names], required=(_EMBEDS,)
    )
    return traced, names


def _language_examples(module: torch.nn.Module, seen: SeenPart) -> dict[str, Example]:
    """Returns examples with a past, of what the language model was seen to take."""
    # First what others are counted by.
    examples = {_EMBEDS: seen.examples[_EMBEDS]}
    for name, example in seen.examples.items():
        rank, kind = example.tensor.dim(), name.partition(".")[0]
        if name == _EMBEDS:
            width = example.tensor.shape[2]
            examples[name] = Example(torch.zeros(_BATCH, _TOKENS, width), (0, 1))
        elif name == _POSITIONS and rank in (2, 3):
            axes = example.tensor.shape[: rank - 2]
            positions = torch.zeros(*axes, _BATCH, _TOKENS, dtype=torch.int64)
            examples[name] = Example(positions, (rank - 2, rank - 1))
        elif kind == _MASK and rank == 2:
            mask = torch.ones(_BATCH, _PAST + _TOKENS, dtype=torch.int64)
            examples[name] = Example(mask, (0, 1))
        elif kind == _MASK and rank == 4:
            # True where a token may attend, or numbers that are added to scores.
            kept = example.tensor.dtype
            allowed = torch.ones(_BATCH, 1, _TOKENS, _PAST + _TOKENS, dtype=kept)
            examples[name] = Example(allowed, (0, 2, 3))
        else:
            raise CaptureError(
                f"{type(module).__name__}: must take embeddings, a mask and positions; got "
                f"{name} {tuple(example.tensor.shape)} too. Such models are not supported yet.",
                code="unknown-encoder",
            )
    if _POSITIONS not in examples:  # it counts tokens itself, and takes positions all the same
        positions = torch.zeros(_BATCH, _TOKENS, dtype=torch.int64)
        examples[_POSITIONS] = Example(positions, (0, 1))
    return examples


def _cache_shapes(module: torch.nn.Module, seen: SeenPart) -> tuple[tuple[int, int], ...]:
    """Returns heads and size of each key and value that the language model keeps."""
    width = seen.examples[_EMBEDS].tensor.shape[2]
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.no_grad():
        given = {_EMBEDS: torch.zeros(1, 2, width)}
        output = module(**given, use_cache=True, **{CACHE: DynamicCache()})
    cache = getattr(output, CACHE)
    kinds = {type(layer) for layer in cache.layers} or {type(cache)}
    kept = _kept(cache) if kinds == {DynamicLayer} else []
    if not kept or any(tensor is None or tensor.shape[2] != 2 for tensor in kept):
        raise CaptureError(
            f"{type(module).__name__}: must keep keys and values in each layer, and nothing else; "
            f"got {', '.join(sorted(kind.__name__ for kind in kinds))}. Such models are not "
            "supported yet.",
            code="unsupported-cache",
        )
    return tuple((int(tensor.shape[1]), int(tensor.shape[3])) for tensor in kept)


def _filled(tensors: Sequence[torch.Tensor]) -> Cache:
    """Returns a cache that holds the given keys and values, each layer with its whole past."""
    layers = []
    for key, value in zip(tensors[::2], tensors[1::2], strict=True):
        layer = DynamicLayer()
        layer.keys, layer.values = key, value
        layer.dtype, layer.device = key.dtype, key.device
        layer.is_initialized = True
        layers.append(layer)
    return Cache(layers=layers)


def _kept(cache: Any) -> list[Any]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]

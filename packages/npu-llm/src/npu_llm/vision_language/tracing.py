"""Traces the parts of a vision-language model, called as by its own code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from npu_llm.cache_names import CACHE
from npu_llm.capture.model_cache import LayerCache
from npu_llm.errors import CaptureError
from npu_llm.multi_part.tracing import (
    TRACE_FAILURES,
    Example,
    TracedPart,
    cache_of,
    tensors_of,
    trace_part,
)
from npu_llm.vision_language.caches import EMBEDS, MASK, POSITIONS
from npu_llm.vision_language.submodules import (
    LANGUAGE,
    Call,
    Outline,
    call_again,
    find_parts,
    outline,
    packed_attention,
    read_call,
    with_positions,
)

__all__ = [
    "SeenPart",
    "cache_names",
    "count_image_tokens",
    "example_images",
    "example_text",
    "observe_parts",
    "trace_submodules",
]

# Patches of an image's grid, as multiples of those merged into one.
_GRID = (2, 3)


def example_images(
    model: Any, *, rows: int, fill: Callable[[Sequence[int]], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns images like a model's processor, one for each of some texts.

    Args:
        model: a vision-language model of transformers.
        rows: number of texts.
        fill: creates a float tensor of a shape.

    Returns:
        pixel_values, and other inputs of forward for it.

    Raises:
        CaptureError: [unknown-encoder] for a model with other image inputs.
    """
    taken = inspect.signature(model.forward).parameters
    vision: Any = getattr(model.config, "vision_config", None)
    size = getattr(vision, "image_size", None)
    side: Any = size[0] if isinstance(size, (list, tuple)) else size
    count: Any = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", 3)
    channels = int(count)
    if "image_grid_thw" in taken:
        merged = int(vision.spatial_merge_size)
        height, width = (merged * times for times in _GRID)
        length = channels * vision.temporal_patch_size * vision.patch_size**2
        grid = torch.tensor([[1, height, width]] * rows)
        return {"pixel_values": fill((rows * height * width, length)), "image_grid_thw": grid}
    if side is None or "pixel_values" not in taken:
        raise CaptureError(
            f"`{type(model).__name__}` must take images as pixel_values of a known size, or as "
            "patches with a grid, got another way. Such models are not supported yet.",
            code="unknown-encoder",
        )
    one = (channels, int(side), int(side))
    if "pixel_attention_mask" in taken:
        mask = torch.ones(rows, 1, side, side, dtype=torch.int64)
        return {"pixel_values": fill((rows, 1, *one)), "pixel_attention_mask": mask}
    if "image_sizes" in taken and getattr(model.config, "image_grid_pinpoints", None):
        # For the first resolution: tiles, after the whole image.
        height, width = model.config.image_grid_pinpoints[0]
        tiles = 1 + (height // side) * (width // side)
        sizes = torch.tensor([[height, width]] * rows)
        return {"pixel_values": fill((rows, tiles, *one)), "image_sizes": sizes}
    return {"pixel_values": fill((rows, *one))}


def example_text(
    model: Any, *, images: int, tokens: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """Returns texts with an image after the first token.

    Args:
        model: a vision-language model of transformers.
        images: number of image tokens.
        tokens: tokens per row, at least two; shorter rows are left-padded.

    Returns:
        input_ids and attention_mask (rows, length), and the token types if forward takes them.
    """
    mark = int(model.config.image_token_id)
    taken = inspect.signature(model.forward).parameters
    length = images + max(map(len, tokens))
    ids = torch.zeros(len(tokens), length, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, one in enumerate(tokens):
        whole = [one[0], *[mark] * images, *one[1:]]
        ids[row, -len(whole) :], mask[row, -len(whole) :] = torch.tensor(whole), 1
    kinds = (ids == mark).long()
    names = ("token_type_ids", "mm_token_type_ids")
    return {
        "input_ids": ids,
        "attention_mask": mask,
        **{name: kinds for name in names if name in taken},
    }


@dataclass(frozen=True)
class SeenPart:
    """The calls of a part.

    Attributes:
        examples: its inputs by name, with their dynamic dimensions.
        choices: other arguments, which are constant.
        result: structure of its result.
    """

    examples: dict[str, Example]
    choices: dict[str, Any]
    result: Outline

    def as_dict(self) -> dict[str, Any]:
        """Returns the data that calls of its program need, as JSON."""
        return {
            "inputs": sorted(self.examples),
            "choices": self.choices,
            "result": {"tree": self.result.tree, "described": self.result.described},
        }


def observe_parts(model: Any) -> dict[str, SeenPart]:
    """Runs a model's own code twice, with different numbers of rows, images and tokens.

    Args:
        model: a vision-language model of transformers; its weights are not read.

    Returns:
        By name: its parts from npu_llm.vision_language.submodules, if they are called.

    Raises:
        CaptureError: [unknown-encoder] if its code cannot run on example inputs, or calls a part
            more than once.
    """
    first, second = (_observe(model, rows, tokens) for rows, tokens in ((2, 5), (3, 7)))
    seen = {}
    for name, (call, result) in first.items():
        other, _ = second[name]
        if call.choices != other.choices or call.tensors.keys() != other.tensors.keys():
            raise _unknown(model, f"{name} called in different ways")
        examples = {}
        for key, tensor in other.tensors.items():
            before = call.tensors[key].shape
            if len(before) != tensor.dim():
                raise _unknown(model, f"{name} called with {key} of different ranks")
            varying = [dim for dim, size in enumerate(tensor.shape) if size != before[dim]]
            examples[key] = Example(tensor, tuple(varying))
        seen[name] = SeenPart(examples, call.choices, result)
    return seen


def count_image_tokens(model: Any, images: Mapping[str, torch.Tensor], *, rows: int) -> int:
    """Returns the number of tokens per image, for one of several equal images per row."""
    with _seen_calls(model), torch.no_grad():
        found = model.get_image_features(**images)
    features = getattr(found, "pooler_output", found)
    each = [features] if isinstance(features, torch.Tensor) else features
    return sum(one.numel() // one.shape[-1] for one in each) // rows


def _observe(model: Any, rows: int, tokens: int) -> dict[str, tuple[Call, Outline]]:
    try:
        images = example_images(model, rows=rows, fill=torch.ones)
        count = count_image_tokens(model, images, rows=rows)
        text = example_text(model, images=count, tokens=[[1] * tokens] * rows)
        with _seen_calls(model) as seen, torch.no_grad():
            model(**text, **images, use_cache=False)
    except TRACE_FAILURES as failure:
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise _unknown(model, lines[0].rstrip(".")) from failure
    twice = [name for name, calls in seen.items() if len(calls) > 1]
    if twice:
        raise _unknown(model, f"{twice[0]} called more than once")
    return {name: calls[0] for name, calls in seen.items()}


@contextmanager
def _seen_calls(model: Any) -> Iterator[dict[str, list[tuple[Call, Outline]]]]:
    """Records the calls of a model's parts, which return zeros."""
    seen: dict[str, list[tuple[Call, Outline]]] = {}
    parts = find_parts(model)

    def note(name: str, part: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = read_call(part, args, kwargs)
        if name == LANGUAGE:
            result = BaseModelOutputWithPast(
                last_hidden_state=torch.zeros_like(call.tensors["inputs_embeds"])
            )
        else:
            tensors = with_positions(part, call.tensors)
            call = Call(tensors, call.choices)
            result = _as_zeros(part, call)
        made, _ = outline(result)
        seen.setdefault(name, []).append((call, made))
        return result

    for name, part in parts.items():
        noted = functools.wraps(part.forward)(functools.partial(note, name, part))
        object.__setattr__(part, "forward", noted)
    try:
        yield seen
    finally:
        for part in parts.values():
            object.__delattr__(part, "forward")


def _as_zeros(part: torch.nn.Module, call: Call) -> Any:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    forward = type(part).forward
    with packed_attention(part, call.tensors) as beside, fake:
        given = call_again({name: fake.from_tensor(one) for name, one in call.tensors.items()})
        result = forward(part, **given, **call.choices, **beside)
    made, tensors = outline(result)
    return made.make([torch.zeros(one.shape, dtype=one.dtype) for one in tensors])


def _unknown(model: Any, got: str) -> CaptureError:
    return CaptureError(
        f"`{type(model).__name__}` must run on example images and text, and call each part once, "
        f"got: {got}. Such models are not supported yet.",
        code="unknown-encoder",
    )


# No model has a dimension of one of these sizes, so fixed sizes are detected.
_BATCH, _TOKENS, _PAST = 11, 13, 17
_HIDDEN = "hidden_states"


def trace_submodules(
    model: Any, seen: Mapping[str, SeenPart]
) -> tuple[list[TracedPart], tuple[LayerCache, ...]]:
    """Traces each part of a model with the inputs of its calls.

    Args:
        model: a vision-language model of transformers, on cpu, in eval mode.
        seen: the calls of its parts.

    Returns:
        The graphs, the language model's last, with its cache as inputs and results; and the caches
        of its layers.

    Raises:
        CaptureError: if a part cannot be traced, [unsupported-cache] if the language model caches
            more than keys and values, or [unknown-encoder] if it has inputs other than embeddings,
            a mask and positions.
    """
    modules = find_parts(model)
    parts = [
        _trace_stateless(modules[name], name, part)
        for name, part in seen.items()
        if name != LANGUAGE
    ]
    layers = _layer_caches(modules[LANGUAGE], seen[LANGUAGE])
    return [*parts, _trace_language(modules[LANGUAGE], seen[LANGUAGE], layers)], layers


def cache_names(layers: int) -> tuple[str, ...]:
    """Returns names for the key and the value of each layer of the language model."""
    return tuple(f"past.{i}.{kind}" for i in range(layers) for kind in ("key", "value"))


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
    module: torch.nn.Module, seen: SeenPart, layers: Sequence[LayerCache]
) -> TracedPart:
    examples = _language_examples(module, seen)
    names = cache_names(len(layers))
    shapes = [shape for layer in layers for shape in layer.shapes.values()]
    for name, (heads, size) in zip(names, shapes, strict=True):
        examples[name] = Example(torch.zeros(_BATCH, heads, _PAST, size), (0, 2))

    def run(tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        given = {key: tensors[key] for key in tensors if key not in names}
        cache = cache_of([tensors[name] for name in names])
        output = module(**call_again(given), use_cache=True, **{CACHE: cache})
        return [output.last_hidden_state, *tensors_of(cache)]

    return trace_part(
        module, LANGUAGE, run, examples=examples, outputs=[_HIDDEN, *names], required=(EMBEDS,)
    )


def _language_examples(module: torch.nn.Module, seen: SeenPart) -> dict[str, Example]:
    """Returns examples with a past for the observed inputs of the language model."""
    # First the ones that determine the sizes of others.
    examples = {EMBEDS: seen.examples[EMBEDS]}
    for name, example in seen.examples.items():
        rank, kind = example.tensor.dim(), name.partition(".")[0]
        if name == EMBEDS:
            width = example.tensor.shape[2]
            examples[name] = Example(torch.zeros(_BATCH, _TOKENS, width), (0, 1))
        elif name == POSITIONS and rank in (2, 3):
            axes = example.tensor.shape[: rank - 2]
            positions = torch.zeros(*axes, _BATCH, _TOKENS, dtype=torch.int64)
            examples[name] = Example(positions, (rank - 2, rank - 1))
        elif kind == MASK and rank == 2:
            mask = torch.ones(_BATCH, _PAST + _TOKENS, dtype=torch.int64)
            examples[name] = Example(mask, (0, 1))
        elif kind == MASK and rank == 4:
            # True for allowed pairs, or numbers that are added to scores.
            kept = example.tensor.dtype
            allowed = torch.ones(_BATCH, 1, _TOKENS, _PAST + _TOKENS, dtype=kept)
            examples[name] = Example(allowed, (0, 2, 3))
        else:
            raise CaptureError(
                f"`{type(module).__name__}` must take embeddings, a mask and positions, got "
                f"{name} {tuple(example.tensor.shape)} too. Such models are not supported yet.",
                code="unknown-encoder",
            )
    if POSITIONS not in examples:  # it counts tokens itself, and still takes positions
        positions = torch.zeros(_BATCH, _TOKENS, dtype=torch.int64)
        examples[POSITIONS] = Example(positions, (0, 1))
    return examples


def _layer_caches(module: torch.nn.Module, seen: SeenPart) -> tuple[LayerCache, ...]:
    """Returns heads and sizes of the language model's keys and values."""
    width = seen.examples[EMBEDS].tensor.shape[2]
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.no_grad():
        given = {EMBEDS: torch.zeros(1, 2, width)}
        output = module(**given, use_cache=True, **{CACHE: DynamicCache()})
    cache = getattr(output, CACHE)
    kinds = {type(layer) for layer in cache.layers} or {type(cache)}
    kept = tensors_of(cache) if kinds == {DynamicLayer} else []
    if not kept or any(tensor is None or tensor.shape[2] != 2 for tensor in kept):
        raise CaptureError(
            f"`{type(module).__name__}` must cache only keys and values in each layer, got "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}. Such models are not supported "
            "yet.",
            code="unsupported-cache",
        )
    sizes = [(int(tensor.shape[1]), int(tensor.shape[3])) for tensor in kept]
    return tuple(LayerCache(*one, *two) for one, two in zip(sizes[::2], sizes[1::2], strict=True))

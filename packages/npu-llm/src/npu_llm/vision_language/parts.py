"""The parts of a vision-language model: traced, lowered and compared with torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import transformers

from npu_llm.cache_names import CACHE
from npu_llm.capture.model_cache import LayerCache
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.facts import context_length
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.errors import CaptureError, ModelError
from npu_llm.kv_cache.static_layout import LONGEST
from npu_llm.multi_part.building import lower_static_step
from npu_llm.multi_part.reference import Reference, differ
from npu_llm.multi_part.tracing import Example, Part, TracedModel, TracedPart
from npu_llm.precision import Precision
from npu_llm.vision_language.caches import EMBEDS, MASK, POSITIONS
from npu_llm.vision_language.submodules import EMBED, HEAD, LANGUAGE, outer_tensors
from npu_llm.vision_language.tracing import (
    cache_names,
    count_image_tokens,
    example_images,
    example_text,
    observe_parts,
    trace_submodules,
)

__all__ = ["compare_model", "describe_part", "trace_parts"]

_PACKED = "cu_seqlens"
_COUNTED = "window_index"
_VOCABULARY = 64  # test tokens of the language model; their embeddings are random
# For the inputs that are compared with torch.
_ROWS, _TOKENS, _LATER = 2, 5, 4


def trace_parts(model: Any, source: ModelSource, *, is_static: bool) -> TracedModel:
    """Traces the submodules of a model, each called as by the model's own code.

    Args:
        model: a vision-language model of transformers.
        source: its files.
        is_static: whether programs have fixed sizes.

    Raises:
        ModelError: [model-task] for another model.
        CaptureError: the errors of observe_parts, trace_submodules and describe_part.
    """
    name = type(model).__name__
    if not hasattr(transformers, name) or not hasattr(model, "get_image_features"):
        raise ModelError(
            f"`{source.path}` must be a vision-language model of transformers, got {name}. Load "
            "it with another class, such as NPUModelForCausalLM.",
            code="model-task",
        )
    seen = observe_parts(model)
    traced, layers = trace_submodules(model, seen)
    parts = [
        Part(
            one,
            cache_names(len(layers)) if one.name == LANGUAGE else (),
            functools.partial(_lower_language, model, one, layers)
            if one.name == LANGUAGE
            else None,
            is_compressed=one.name in (EMBED, LANGUAGE, HEAD),
        )
        for one in traced
    ]
    inputs, later = _checked_inputs(model)
    context = context_length(model.config.get_text_config().to_dict())
    static: dict[str, Any] | None = None
    if is_static:
        context = context or LONGEST
        prompt = inputs["input_ids"].shape[1]
        static = {
            "prompt": prompt,
            "checked": prompt + later.shape[1],
            "parts": {
                one.name: describe_part(model, one, seen[one.name].examples)
                for one in traced
                if one.name != LANGUAGE
            },
        }
    about = {
        "context_length": context,
        "pixels": list(example_images(model, rows=1, fill=torch.empty)["pixel_values"].shape),
        "parts": {one: part.as_dict() for one, part in seen.items()},
    }
    return TracedModel(
        tuple(parts),
        about,
        static,
        inputs,
        later,
        lambda: _logits(model, inputs, later, [_LATER]),
        dict(outer_tensors(model)),
    )


def compare_model(model: Any, reference: Reference) -> str | None:
    """Runs a model of programs on the reference's inputs, token by token and with swapped rows.

    Args:
        model: the result of NPUModelForImageTextToText.from_pretrained.
        reference: torch's results.

    Returns:
        A description of the difference from torch; None without one.
    """
    mask = reference.inputs["attention_mask"].bool()
    counts = torch.cat([mask, torch.ones_like(reference.ids).bool()], 1)
    found = _logits(model, reference.inputs, reference.ids, [1, 1, _LATER - 2], swaps=True)
    expected, rounded = reference.logits[counts], reference.rounded[counts]
    difference = differ(found[counts], expected, rounded, reference.precision)
    return None if difference is None else f"its logits: {difference}"


def _checked_inputs(model: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns two texts with an image each, the second padded, and following tokens."""
    generator = torch.Generator().manual_seed(0)
    mark = int(model.config.image_token_id)
    vocabulary = int(model.config.get_text_config().vocab_size)

    def draw(count: int) -> list[int]:
        ids = torch.randint(2, min(vocabulary, mark) - 1, (count,), generator=generator)
        return [int(one) for one in ids]

    images = example_images(
        model, rows=_ROWS, fill=lambda shape: torch.randn(*shape, generator=generator)
    )
    count = count_image_tokens(model, images, rows=_ROWS)
    text = example_text(model, images=count, tokens=[draw(_TOKENS), draw(_TOKENS - 2)])
    later = torch.tensor([draw(_LATER) for _ in range(_ROWS)])
    return {**text, **images}, later


def _logits(
    model: Any,
    inputs: dict[str, torch.Tensor],
    later: torch.Tensor,
    pieces: Sequence[int],
    *,
    swaps: bool = False,
) -> torch.Tensor:
    """Returns logits of texts, and of later tokens in steps of given sizes.

    Args:
        model: a model of transformers, or one of programs.
        inputs: arguments of the first call.
        later: the later tokens.
        pieces: number of these tokens in each step.
        swaps: whether rows are swapped before each step.
    """
    given, mask = dict(inputs), inputs["attention_mask"]
    positions = _positions_after(model, inputs)
    output = model(**given, use_cache=True)
    found, start = [output.logits], 0
    cache = getattr(output, CACHE)
    order = torch.arange(len(later))
    for count in pieces:
        mask = torch.cat([mask, torch.ones_like(mask[:, :count])], 1)
        places = positions(mask, count)
        if swaps:
            cache.reorder_cache(torch.tensor([1, 0]))
            order = order.flip(0)
        step = model(
            input_ids=later[order, start : start + count],
            attention_mask=mask[order],
            position_ids=places[..., order, :],
            use_cache=True,
            **{CACHE: cache},
        )
        found.append(step.logits[order])
        start += count
    return torch.cat(found, 1)


def _positions_after(
    model: Any, inputs: dict[str, torch.Tensor]
) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """Returns a function from a mask to the positions of its last tokens, as in generate."""
    inner = getattr(model, model.base_model_prefix)

    def positions(mask: torch.Tensor, count: int) -> torch.Tensor:
        plain = (mask.cumsum(-1) - 1)[:, -count:]
        deltas = getattr(inner, "rope_deltas", None)
        return plain if deltas is None else (plain + deltas)[None].expand(3, -1, -1)

    return positions


def describe_part(model: Any, part: TracedPart, examples: Mapping[str, Example]) -> dict[str, Any]:
    """Describes how a part without a cache runs in programs of fixed sizes, for JSON.

    Args:
        model: the transformers model.
        part: its part.
        examples: example arguments of the part.

    Returns:
        "ports": the shape of each input; -1 is the dynamic size, "sequences" the number of
        sequences of patches, "merged" the number of merged patches. "dtypes": dtype of each.
        "leading": the number of dynamic sizes, which is 1 for images and 2 for text tokens, which
        the part reads item by item; or 0 for the patches of all images in one row, of which "merge"
        become one.

    Raises:
        CaptureError: [static-parts] for a part with other inputs.
    """
    varying = {name: examples[name].varying for name in part.inputs}
    shapes = {name: list(examples[name].tensor.shape) for name in part.inputs}
    dtypes = {name: str(examples[name].tensor.dtype).removeprefix("torch.") for name in part.inputs}
    if _PACKED in part.inputs and all(dims == (0,) for dims in varying.values()):
        merge = int(model.config.vision_config.spatial_merge_size) ** 2
        sizes = {name: "sequences" for name in part.inputs if name.startswith("cu_")}
        sizes |= {name: "merged" for name in part.inputs if name == _COUNTED}
        ports = {name: [sizes.get(name, -1), *shape[1:]] for name, shape in shapes.items()}
        return {"ports": ports, "dtypes": dtypes, "leading": 0, "merge": merge}
    leading = len(next(iter(varying.values())))
    is_each = all(dims == tuple(range(leading)) for dims in varying.values())
    if not is_each or leading not in (1, 2) or not _keeps(part, leading):
        got = ", ".join(f"{name} with the dynamic sizes {dims}" for name, dims in varying.items())
        raise CaptureError(
            f"`{type(model).__name__}` must have a {part.name} that reads images, tokens or "
            f"patches one by one, for the static pipeline, got {got}. Run it in the dynamic "
            "pipeline.",
            code="static-parts",
        )
    before = [1] * (leading - 1)
    ports = {name: [*before, -1, *shape[leading:]] for name, shape in shapes.items()}
    return {"ports": ports, "dtypes": dtypes, "leading": leading, "merge": 1}


def _lower_language(
    model: Any,
    part: TracedPart,
    layers: tuple[LayerCache, ...],
    precision: Precision,
    weights: StreamedWeights,
) -> tuple[Any, dict[str, Any]]:
    """Lowers the language model, with a cache of fixed size as an input."""
    own = 2 * len(layers)
    inputs = tuple("input_ids" if name == EMBEDS else name for name in part.inputs[:-own])
    placeholders = part.graph_module.graph.find_nodes(op="placeholder")
    values = {
        name: node.meta["val"]
        for name, node in zip(inputs, placeholders[: len(inputs)], strict=True)
    }
    width = int(values["input_ids"].shape[2])
    captured = CapturedStep(part.graph_module, inputs, layers, _VOCABULARY, ())
    # A mask of token pairs needs no positions.
    sees = [name for name in inputs if name.partition(".")[0] == MASK and values[name].dim() == 4]
    generator = torch.Generator().manual_seed(0)
    lowered, static = lower_static_step(
        captured,
        model,
        part="language model",
        name=part.name,
        precision=precision,
        is_masked=bool(sees),
        weights=weights,
        embedding=torch.randn(_VOCABULARY, width, generator=generator),
    )
    forms: dict[str, list[int | str]] = {"input_ids": [1, "tokens", width]}
    if POSITIONS in values:
        forms[POSITIONS] = [*map(int, values[POSITIONS].shape[:-2]), 1, "tokens"]
    forms |= {name: [1, 1, "tokens", "whole"] for name in sees}
    return lowered, {
        **static,
        "layout": {**static["layout"], "forms": forms},
        "sees_ahead": bool(sees),
        "adds": {name: values[name].dtype.is_floating_point for name in inputs},
    }


def _keeps(part: TracedPart, leading: int) -> bool:
    """Whether all results of a part begin with the dynamic sizes of its inputs."""
    graph = part.graph_module.graph
    (output,) = graph.find_nodes(op="output")
    first = graph.find_nodes(op="placeholder")[0].meta["val"]
    wanted = [str(size) for size in first.shape[:leading]]
    return all(
        [str(size) for size in result.meta["val"].shape[:leading]] == wanted
        for result in output.args[0]
    )

"""The parts of a model of images and text for programs of fixed sizes: how they take any inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from npu_llm.capture.model_cache import LayerCache
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.errors import CaptureError
from npu_llm.kv_cache.cache import Relocation
from npu_llm.part_programs.static_steps import lower_static_step, relocate_part
from npu_llm.part_programs.tracing import Example, TracedPart
from npu_llm.precision import Precision
from npu_llm.vision_language.language_cache import EMBEDS, MASK, POSITIONS

__all__ = ["describe_part", "lower_language"]

_PACKED = "cu_seqlens"
_COUNTED = "window_index"
_VOCABULARY = 64  # of tokens to try the language model with; their vectors are random


def describe_part(model: Any, part: TracedPart, examples: Mapping[str, Example]) -> dict[str, Any]:
    """Returns how a part without a cache runs in programs of fixed sizes, for JSON.

    Args:
        model: of transformers.
        part: its part.
        examples: what the part is called with.

    Returns:
        "ports": the shape of each input; -1 is the size that varies, "sequences" how many sequences
        of patches there may be, "merged" how many patches are left. "dtypes": of each. "leading":
        how many sizes vary, which is 1 for images and 2 for the tokens of texts, each of which the
        part reads by itself; or 0 for patches of all images in one row, of which "merge" become
        one.

    Raises:
        CaptureError: [static-parts] for a part that takes anything else.
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
        got = ", ".join(f"{name} with sizes {dims} that vary" for name, dims in varying.items())
        raise CaptureError(
            f"{type(model).__name__}: its {part.name} must read images, tokens or patches one by "
            f"one, for the static pipeline; got {got}. Run it in the dynamic pipeline.",
            code="static-parts",
        )
    before = [1] * (leading - 1)
    ports = {name: [*before, -1, *shape[leading:]] for name, shape in shapes.items()}
    return {"ports": ports, "dtypes": dtypes, "leading": leading, "merge": 1}


def lower_language(
    model: Any,
    part: TracedPart,
    *,
    precision: Precision,
    weights: StreamedWeights,
    layers: tuple[LayerCache, ...],
) -> tuple[Any, dict[str, Any]]:
    """Lowers the language model, whose cache is an input of fixed size.

    Args:
        model: of transformers.
        part: its language model; its graph is changed.
        precision: what keys and values are stored as.
        weights: the values of its parameters.
        layers: of its cache.

    Returns:
        An openvino.Model with names, and what is known about it, for JSON.

    Raises:
        CaptureError: [static-positions] if its code counts places in a way that was not found,
            [static-cache] as make_static does.
    """
    own = 2 * len(layers)
    inputs = tuple("input_ids" if name == EMBEDS else name for name in part.inputs[:-own])
    placeholders = part.graph_module.graph.find_nodes(op="placeholder")
    values = {
        name: node.meta["val"]
        for name, node in zip(inputs, placeholders[: len(inputs)], strict=True)
    }
    width = int(values["input_ids"].shape[2])
    captured = CapturedStep(part.graph_module, inputs, layers, _VOCABULARY, ())
    # A mask that says of each token which others it sees needs no counting.
    sees = [name for name in inputs if name.partition(".")[0] == MASK and values[name].dim() == 4]
    relocation: Relocation = "mask"
    if not sees:
        generator = torch.Generator().manual_seed(0)
        captured, relocation = relocate_part(
            captured,
            model,
            part="language model",
            weights=weights,
            embedding=torch.randn(_VOCABULARY, width, generator=generator),
        )
    lowered, static = lower_static_step(captured, name=part.name, precision=precision)
    forms: dict[str, list[int | str]] = {"input_ids": [1, "tokens", width]}
    if POSITIONS in values:
        forms[POSITIONS] = [*map(int, values[POSITIONS].shape[:-2]), 1, "tokens"]
    forms |= {name: [1, 1, "tokens", "whole"] for name in sees}
    return lowered, {
        "layout": {**static.as_dict(), "forms": forms},
        "relocation": relocation,
        "sees_ahead": bool(sees),
        "adds": {name: values[name].dtype.is_floating_point for name in inputs},
    }


def _keeps(part: TracedPart, leading: int) -> bool:
    """Whether all results of a part begin with the sizes that vary among its inputs."""
    graph = part.graph_module.graph
    (output,) = graph.find_nodes(op="output")
    first = graph.find_nodes(op="placeholder")[0].meta["val"]
    wanted = [str(size) for size in first.shape[:leading]]
    return all(
        [str(size) for size in result.meta["val"].shape[:leading]] == wanted
        for result in output.args[0]
    )

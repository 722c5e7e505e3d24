"""A model's parts for the static pipeline: which models can have them, and decoders lowered."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch

from npu_llm.capture.model_cache import LayerCache
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.encoder_decoders.parts import Layout, example_inputs
from npu_llm.encoder_decoders.static_cross_cache import SOURCE_MASK
from npu_llm.errors import CaptureError
from npu_llm.part_programs.static_steps import lower_static_step, relocate_part
from npu_llm.part_programs.tracing import TracedPart
from npu_llm.precision import Precision

__all__ = ["describe_static", "lower_static"]

# What a decoder's inputs are called in steps of models without an encoder, and so in static ones.
_NAMES = {
    "decoder_input_ids": "input_ids",
    "decoder_attention_mask": "attention_mask",
    "decoder_position_ids": "position_ids",
    "attention_mask": SOURCE_MASK,
}
_SOURCE = 7  # results of an encoder, where any number will do
_VARIES = -1


def describe_static(model: Any, parts: Sequence[TracedPart], layout: Layout) -> dict[str, Any]:
    """Returns the shapes of a model's inputs in the static pipeline, for JSON; -1 is the source.

    Args:
        model: of transformers.
        parts: its parts: encoder, bridge and decoders.
        layout: its caches.

    Raises:
        CaptureError: [static-encoder] if padding behind its input would change its results,
            [static-positions] before transformers 5, whose decoders mask by slot and by position.
    """
    version = metadata.version("transformers")
    if int(version.partition(".")[0]) < 5:
        raise CaptureError(
            f"{type(model).__name__}: must be traced with transformers 5 for the static pipeline; "
            f"got {version}. Update it, or run the model in the dynamic pipeline.",
            code="static-positions",
        )
    encoder, _, *decoders = parts
    is_fixed = layout.source is not None
    has_masks = "attention_mask" in encoder.inputs and all(
        "attention_mask" in each.inputs for each in decoders
    )
    if not is_fixed and (model.main_input_name != "input_ids" or not has_masks):
        raise CaptureError(
            f"{type(model).__name__}: its encoder must read tokens with a mask, or spectra of a "
            f"fixed length, for the static pipeline; got one that reads {model.main_input_name}, "
            "whose padding would change its results. Run it in the dynamic pipeline.",
            code="static-encoder",
        )
    examples = example_inputs(model, batch=1, length=1)
    inputs = {
        name: [*tensor.shape] if is_fixed else [1, _VARIES] for name, tensor in examples.items()
    }
    length = _VARIES if layout.source is None else layout.source
    given = {name: [*shape] for name, shape in layout.cross_shapes(length).items()}
    if not is_fixed:
        given[SOURCE_MASK] = [1, _VARIES]
    return {
        "source": layout.source,
        "encoder": {name: inputs[name] for name in encoder.inputs},
        "bridge": {"encoder_hidden_states": [1, length, layout.width]},
        "given": given,
        "decoders": {},
    }


def lower_static(
    model: Any,
    part: TracedPart,
    layout: Layout,
    *,
    precision: Precision,
    weights: StreamedWeights,
) -> tuple[Any, dict[str, Any]]:
    """Lowers a decoder whose cache is an input of fixed size, as in models without an encoder.

    Args:
        model: of transformers.
        part: its decoder; its graph is changed.
        layout: its caches.
        precision: what keys and values are stored as.
        weights: the values of its parameters.

    Returns:
        An openvino.Model with names, and what is known about it, for JSON.

    Raises:
        CaptureError: [static-positions] if its code counts places in a way that was not found,
            [static-cache] as make_static does.
    """
    own = len(layout.own_names)
    captured = CapturedStep(
        part.graph_module,
        tuple(_NAMES.get(name, name) for name in part.inputs[:-own]),
        (LayerCache(*layout.own),) * layout.layers,
        int(model.config.get_text_config(decoder=True).vocab_size),
        (),
    )
    length = _SOURCE if layout.source is None else layout.source
    generator = torch.Generator().manual_seed(0)
    given = {
        name: torch.randn(shape, generator=generator)
        for name, shape in layout.cross_shapes(length).items()
    }
    given[SOURCE_MASK] = torch.ones(1, length, dtype=torch.int64)
    captured, relocation = relocate_part(
        captured, model, part="decoder", weights=weights, given=given
    )
    lowered, static = lower_static_step(captured, name=part.name, precision=precision)
    return lowered, {"layout": static.as_dict(), "relocation": relocation}

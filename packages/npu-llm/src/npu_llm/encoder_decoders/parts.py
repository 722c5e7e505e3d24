"""The parts of an encoder-decoder model: traced, lowered and compared with torch.

The encoder reads the input once. The bridge computes the inputs of cross-attention for each decoder
layer from its output, also once. The decoder reads tokens: keys and values of self-attention are
the program's state, those from the bridge are inputs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from npu_llm.cache_names import CACHE
from npu_llm.capture.model_cache import LayerCache
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.encoder_decoders.running import DECODERS, SOURCE_MASK, encode
from npu_llm.errors import CaptureError, ModelError
from npu_llm.kv_cache.static_layout import LONGEST
from npu_llm.multi_part.building import lower_static_step
from npu_llm.multi_part.reference import Reference, differ
from npu_llm.multi_part.running import Parts
from npu_llm.multi_part.tracing import (
    Example,
    Part,
    TracedModel,
    TracedPart,
    cache_of,
    tensors_of,
    trace_part,
)
from npu_llm.precision import Precision

__all__ = ["compare_parts", "trace_parts"]

# No model has a dimension of one of these sizes, so fixed sizes are detected.
_BATCH, _SOURCE, _TOKENS, _PAST = 11, 19, 13, 17
_SAMPLES = 11987
# For the inputs that are compared with torch.
_CHECKED_TEXT, _CHECKED_SAMPLES, _CHECKED_PADDING, _CHECKED_TOKENS = 9, 4003, 3, 6
# The decoder's inputs under the names of decoder-only and static steps.
_NAMES = {
    "decoder_input_ids": "input_ids",
    "decoder_attention_mask": "attention_mask",
    "decoder_position_ids": "position_ids",
    "attention_mask": SOURCE_MASK,
}
_SOME = 7  # arbitrary encoder outputs
_VARIES = -1


@dataclass(frozen=True)
class _Layout:
    """The caches of a decoder.

    Attributes:
        layers: number of layers.
        own: heads and sizes (key heads, key size, value heads, value size) of self-attention.
        cross: heads and sizes of cross-attention.
        width: width of the encoder's hidden states.
        source: length of its output; None if dynamic.
    """

    layers: int
    own: tuple[int, int, int, int]
    cross: tuple[int, int, int, int]
    width: int
    source: int | None

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names for the key and the value of each layer's self-attention."""
        return tuple(f"past.{i}.{kind}" for i in range(self.layers) for kind in ("key", "value"))

    def cross_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Shapes of one source's inputs to cross-attention, by name."""
        heads, size, value_heads, value_size = self.cross
        shapes = ((1, heads, length, size), (1, value_heads, length, value_size))
        return {name: shapes[index % 2] for index, name in enumerate(self.cross_names)}

    @property
    def cross_names(self) -> tuple[str, ...]:
        """Names for the key and the value of each layer's cross-attention."""
        return tuple(f"cross.{i}.{kind}" for i in range(self.layers) for kind in ("key", "value"))


def trace_parts(model: Any, source: ModelSource, *, is_static: bool) -> TracedModel:
    """Traces a model's parts: "encoder", "bridge", "decoder", and "attending" for alignment.

    Args:
        model: an encoder-decoder model of transformers, on cpu, in eval mode.
        source: its files.
        is_static: whether programs have fixed sizes.

    Raises:
        ModelError: [model-task] for another model.
        CaptureError: if they cannot be traced, [unsupported-cache] if layers differ or cache more
            than keys and values, [static-encoder] or [static-positions] if they cannot have fixed
            sizes.
    """
    name = type(model).__name__
    if not hasattr(transformers, name) or not model.config.is_encoder_decoder:
        raise ModelError(
            f"`{source.path}` must be an encoder-decoder model of transformers, got {name}. Load "
            "it with another class, such as NPUModelForCausalLM.",
            code="model-task",
        )
    # A decoder that also returns its cross-attention weights.
    is_aligned = getattr(model.generation_config, "alignment_heads", None) is not None
    traced, layout = _trace(model, DECODERS if is_aligned else DECODERS[:1])
    parts = [
        Part(
            one,
            layout.own_names if one.name in DECODERS else (),
            functools.partial(_lower_static, model, one, layout) if one.name in DECODERS else None,
        )
        for one in traced
    ]
    limit = LONGEST if is_static else None
    about = {
        "encoder_inputs": list(traced[0].inputs),
        "takes_mask": any("attention_mask" in one.inputs for one in traced[2:]),
        "positions": _positions(model, "max_target_positions") or limit,
        "source_positions": _positions(model, "max_source_positions") or limit,
    }
    static = _describe_static(model, traced, layout) if is_static else None
    inputs, ids = _checked_inputs(model)

    def run() -> torch.Tensor:
        logits: torch.Tensor = model(**inputs, decoder_input_ids=ids, use_cache=False).logits
        return logits

    return TracedModel(tuple(parts), about, static, inputs, ids, run)


def compare_parts(parts: Parts, reference: Reference, name: str) -> str | None:
    """Runs programs on the reference's inputs.

    Args:
        parts: the programs.
        reference: torch's results.
        name: name of the decoder to run; for other parts it is "decoder".

    Returns:
        A description of the difference from torch; None without one.
    """
    decoder = name if name in DECODERS else "decoder"
    hidden, mask = encode(parts, reference.inputs)
    cache: Any = parts.new_cache(decoder)
    order = torch.tensor([1, 0])
    cache.read(hidden, mask)
    pieces = (slice(0, 3), slice(3, 4), slice(4, _CHECKED_TOKENS))
    found = [cache.next(reference.ids[:, tokens]).logits for tokens in pieces]
    cache.crop(4)
    # Swapped rows, after removed tokens.
    cache.reorder_cache(order)
    swapped = cache.next(reference.ids[order][:, 4:]).logits[order]
    for what, first, logits in (("tokens", 0, torch.cat(found, 1)), ("swapped rows", 4, swapped)):
        expected, rounded = reference.logits[:, first:], reference.rounded[:, first:]
        difference = differ(logits, expected, rounded, reference.precision)
        if difference is not None:
            return f"the {decoder}'s {what}: {difference}"
    return None


def _trace(model: Any, decoders: Sequence[str]) -> tuple[list[TracedPart], _Layout]:
    """Returns the traced parts, and the caches of the decoders."""
    is_text = model.main_input_name == "input_ids"
    length = _SOURCE if is_text else _SAMPLES
    inputs = _example_inputs(model, batch=_BATCH, length=length)
    varies = model.main_input_name != "input_features"
    given = {name: Example(tensor, (0, 1) if varies else (0,)) for name, tensor in inputs.items()}
    with torch.no_grad():
        seen = model.get_encoder()(**_example_inputs(model, batch=1, length=length))
        layout = _layout(model, seen)
    source, width = (int(size) for size in seen.last_hidden_state.shape[1:])
    # An encoder that shortens its input also returns which of its outputs are padding.
    shortens = seen.get("attention_mask") is not None
    moves = (0, 1) if varies else (0,)
    states = {"encoder_hidden_states": Example(torch.zeros(_BATCH, source, width), moves)}
    masks = {name: given[name] for name in ("attention_mask",) if name in given}
    if shortens:
        masks["attention_mask"] = Example(torch.ones(_BATCH, source, dtype=torch.int64), (0, 1))

    def run_encoder(tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        found = model.get_encoder()(**tensors)
        rest = (found.attention_mask.long(),) if shortens else ()
        return (found.last_hidden_state, *rest)

    def run_bridge(tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        found = tensors["encoder_hidden_states"]
        start = torch.zeros(found.shape[0], 1, dtype=torch.int64)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        model(
            decoder_input_ids=start,
            encoder_outputs=_outputs(seen, found, None),
            use_cache=True,
            **{CACHE: cache},
        )
        return tensors_of(cache.cross_attention_cache)

    parts = [
        trace_part(
            model,
            "encoder",
            run_encoder,
            examples=given,
            outputs=["hidden_states", "attention_mask"][: 2 if shortens else 1],
        ),
        trace_part(model, "bridge", run_bridge, examples=states, outputs=layout.cross_names),
    ]
    parts += [_decoder(model, name, layout, masks=masks, seen=seen) for name in decoders]
    return parts, layout


def _decoder(
    model: Any,
    name: str,
    layout: _Layout,
    *,
    masks: Mapping[str, Example],
    seen: Any,
) -> TracedPart:
    source, width = (int(size) for size in seen.last_hidden_state.shape[1:])
    taken = inspect.signature(model.forward).parameters
    everywhere = (0, 1)
    tokens = {
        "decoder_input_ids": Example(torch.zeros(_BATCH, _TOKENS, dtype=torch.int64), everywhere),
        "decoder_attention_mask": Example(
            torch.ones(_BATCH, _PAST + _TOKENS, dtype=torch.int64), everywhere
        ),
        "decoder_position_ids": Example(
            torch.zeros(_BATCH, _TOKENS, dtype=torch.int64), everywhere
        ),
    }
    examples = {key: value for key, value in tokens.items() if key in taken}
    examples |= masks
    fixed = model.main_input_name == "input_features"
    # The decoder's self-attention cache comes last, as npu_llm.capture.static_step expects.
    for names, sizes, length in (
        (layout.cross_names, layout.cross, source),
        (layout.own_names, layout.own, _PAST),
    ):
        shapes = [(_BATCH, sizes[0], length, sizes[1]), (_BATCH, sizes[2], length, sizes[3])]
        varying = (0,) if fixed and length == source else (0, 2)
        for index, each in enumerate(names):
            examples[each] = Example(torch.zeros(shapes[index % 2]), varying)
    wants = name == "attending"

    def decode(tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        named = {key: value for key, value in tensors.items() if key in taken}
        cache = _filled(tensors, layout)
        first = tensors[layout.cross_names[0]]
        # Only its sizes are read: the bridge has computed the inputs of attention.
        unread = first.new_zeros(first.shape[0], first.shape[2], width)
        output = model(
            **named,
            encoder_outputs=_outputs(seen, unread, tensors.get("attention_mask")),
            use_cache=True,
            **{CACHE: cache},
            **({"output_attentions": True} if wants else {}),
        )
        weights = list(output.cross_attentions) if wants else []
        return [output.logits.float(), *tensors_of(cache.self_attention_cache), *weights]

    outputs = ["logits", *layout.own_names]
    outputs += [f"attention.{i}" for i in range(layout.layers)] if wants else []
    before = model.config._attn_implementation
    try:
        if wants:
            model.set_attn_implementation("eager")
        return trace_part(
            model,
            name,
            decode,
            examples=examples,
            outputs=outputs,
            required=("decoder_input_ids",),
        )
    finally:
        if wants:
            model.set_attn_implementation(before)


def _filled(tensors: Mapping[str, torch.Tensor], layout: _Layout) -> EncoderDecoderCache:
    own, cross = (
        [tensors[one] for one in names] for names in (layout.own_names, layout.cross_names)
    )
    cache = EncoderDecoderCache(cache_of(own), cache_of(cross))
    cache.is_updated = dict.fromkeys(range(layout.layers), True)
    return cache


def _outputs(seen: Any, hidden: torch.Tensor, mask: torch.Tensor | None) -> Any:
    """Returns an encoder output of its class."""
    if seen.get("attention_mask") is None:
        return BaseModelOutput(last_hidden_state=hidden)
    return type(seen)(last_hidden_state=hidden, attention_mask=mask)


def _layout(model: Any, seen: Any) -> _Layout:
    """Runs one token eagerly to detect the decoder's caches."""
    output = model(
        decoder_input_ids=torch.zeros(1, 1, dtype=torch.int64),
        encoder_outputs=seen,
        use_cache=True,
        **{CACHE: EncoderDecoderCache(DynamicCache(), DynamicCache())},
    )
    cache = getattr(output, CACHE)
    if not isinstance(cache, EncoderDecoderCache):
        raise _unsupported(model, type(cache).__name__)
    found = []
    for half in (cache.self_attention_cache, cache.cross_attention_cache):
        kept = tensors_of(half)
        shapes = {
            (key.shape[1], key.shape[3], value.shape[1], value.shape[3])
            for key, value in zip(kept[::2], kept[1::2], strict=True)
        }
        if len(shapes) != 1:
            raise _unsupported(model, f"layers of sizes {sorted(shapes)}")
        found.append(shapes.pop())
    own, cross = found
    length, width = (int(size) for size in seen.last_hidden_state.shape[1:])
    fixed = model.main_input_name == "input_features"
    layers = len(cache.self_attention_cache.layers)
    return _Layout(layers, own, cross, width, length if fixed else None)


def _unsupported(model: Any, got: str) -> CaptureError:
    return CaptureError(
        f"`{type(model).__name__}` must have a decoder that caches keys and values of one size in "
        f"all layers, got {got}. Such models are not supported yet.",
        code="unsupported-cache",
    )


def _describe_static(model: Any, parts: Sequence[TracedPart], layout: _Layout) -> dict[str, Any]:
    """Returns the shapes of a model's inputs in the static pipeline, for JSON; -1 is the source.

    Args:
        model: the transformers model.
        parts: its parts: encoder, bridge and decoders.
        layout: its caches.

    Raises:
        CaptureError: [static-encoder] if padding after its input would change its results,
            [static-positions] before transformers 5: its decoders mask by slot and by position.
    """
    version = metadata.version("transformers")
    if int(version.partition(".")[0]) < 5:
        raise CaptureError(
            f"`{type(model).__name__}` must be traced with transformers 5 for the static pipeline, "
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
            f"`{type(model).__name__}` must have an encoder of tokens with a mask, or of spectra "
            "of a fixed length, for the static pipeline, got one that reads "
            f"{model.main_input_name}, whose padding would change its results. Run it in the "
            "dynamic pipeline.",
            code="static-encoder",
        )
    examples = _example_inputs(model, batch=1, length=1)
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
    }


def _lower_static(
    model: Any, part: TracedPart, layout: _Layout, precision: Precision, weights: StreamedWeights
) -> tuple[Any, dict[str, Any]]:
    """Lowers a decoder with a cache of fixed size as an input, like decoder-only models."""
    own = len(layout.own_names)
    captured = CapturedStep(
        part.graph_module,
        tuple(_NAMES.get(name, name) for name in part.inputs[:-own]),
        (LayerCache(*layout.own),) * layout.layers,
        int(model.config.get_text_config(decoder=True).vocab_size),
        (),
    )
    length = _SOME if layout.source is None else layout.source
    generator = torch.Generator().manual_seed(0)
    given = {
        name: torch.randn(shape, generator=generator)
        for name, shape in layout.cross_shapes(length).items()
    }
    given[SOURCE_MASK] = torch.ones(1, length, dtype=torch.int64)
    return lower_static_step(
        captured, model, part="decoder", name=part.name, precision=precision, weights=weights,
        given=given,
    )  # fmt: skip


def _checked_inputs(model: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns a short input with a padded second row, and a few tokens."""
    generator = torch.Generator().manual_seed(0)
    is_text = model.main_input_name == "input_ids"
    length = _CHECKED_TEXT if is_text else _CHECKED_SAMPLES
    inputs = _example_inputs(model, batch=2, length=length)
    vocabulary = int(model.config.get_text_config().vocab_size)
    for name, tensor in inputs.items():
        if name == "attention_mask":
            tensor[1, -_CHECKED_PADDING:] = 0
        elif tensor.is_floating_point():
            inputs[name] = torch.randn(tensor.shape, generator=generator)
        else:
            inputs[name] = torch.randint(2, vocabulary, tensor.shape, generator=generator)
    return inputs, torch.randint(2, vocabulary, (2, _CHECKED_TOKENS), generator=generator)


def _example_inputs(model: Any, *, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Returns zeros in the shapes of a model's encoder inputs.

    Args:
        model: the transformers model.
        batch: number of rows.
        length: tokens per row; for audio, the number of samples; ignored for spectra with a fixed
            number of frames.

    Returns:
        By name: the main input, and attention_mask (batch, length) if the encoder takes one.

    Raises:
        CaptureError: [unknown-encoder] for an encoder of other inputs.
    """
    config, name = model.config, model.main_input_name
    has_mask = "attention_mask" in inspect.signature(model.get_encoder().forward).parameters
    mask = {"attention_mask": torch.ones(batch, length, dtype=torch.int64)} if has_mask else {}
    if name == "input_ids":
        return {name: torch.zeros(batch, length, dtype=torch.int64), **mask}
    if name == "input_values":
        return {name: torch.zeros(batch, length), **mask}
    if name == "input_features" and hasattr(config, "num_mel_bins"):
        encoder = model.get_encoder()
        if hasattr(encoder, "conv1") and hasattr(config, "max_source_positions"):
            frames = int(config.max_source_positions)
            frames *= int(encoder.conv1.stride[0] * encoder.conv2.stride[0])
            return {name: torch.zeros(batch, int(config.num_mel_bins), frames)}
    raise CaptureError(
        f"`{type(model).__name__}` must have an encoder of tokens, samples, or spectra of a fixed "
        f"length, got one that reads {name}. Such models are not supported yet.",
        code="unknown-encoder",
    )


def _positions(model: Any, name: str) -> int | None:
    """Returns the size of the decoder's, or the encoder's, position table; None without one."""
    half = model.get_decoder() if name == "max_target_positions" else model.get_encoder()
    if not hasattr(half, "embed_positions"):
        return None
    found = getattr(model.config, name, None)
    found = getattr(model.config, "max_position_embeddings", None) if found is None else found
    return None if found is None else int(found)

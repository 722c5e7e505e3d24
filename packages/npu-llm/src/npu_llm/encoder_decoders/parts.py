"""The parts of a model with an encoder and a decoder, each one program.

The encoder reads the input once. The bridge computes from its result what every decoder layer's
cross-attention reads, once as well. The decoder reads tokens: its own keys and values are the
program's state, those of the bridge are inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from npu_llm.cache_names import CACHE
from npu_llm.errors import CaptureError
from npu_llm.part_programs.tracing import Example, TracedPart, trace_part

__all__ = ["DECODERS", "Layout", "example_inputs", "trace_parts"]

# No model has a dimension of one of these sizes, so a size that tracing fixed is noticed.
_BATCH, _SOURCE, _TOKENS, _PAST = 11, 19, 13, 17
_SAMPLES = 11987
# The parts that read tokens.
DECODERS = ("decoder", "attending")


@dataclass(frozen=True)
class Layout:
    """The caches of a decoder.

    Attributes:
        layers: how many layers it has.
        own: heads and sizes (key heads, key size, value heads, value size) of its own attention.
        cross: the same of its cross-attention.
        width: numbers of a hidden state of the encoder.
        source: how long its result is; None if that varies.
    """

    layers: int
    own: tuple[int, int, int, int]
    cross: tuple[int, int, int, int]
    width: int
    source: int | None

    @property
    def own_names(self) -> tuple[str, ...]:
        """A name for the key and the value of each layer's own attention."""
        return tuple(f"past.{i}.{kind}" for i in range(self.layers) for kind in ("key", "value"))

    def cross_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Shapes of what one source gives to cross-attention, by name."""
        heads, size, value_heads, value_size = self.cross
        shapes = ((1, heads, length, size), (1, value_heads, length, value_size))
        return {name: shapes[index % 2] for index, name in enumerate(self.cross_names)}

    @property
    def cross_names(self) -> tuple[str, ...]:
        """A name for the key and the value of each layer's cross-attention."""
        return tuple(f"cross.{i}.{kind}" for i in range(self.layers) for kind in ("key", "value"))


def example_inputs(model: Any, *, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Returns zeros of the shapes that a model's encoder takes.

    Args:
        model: a model of transformers.
        batch: rows.
        length: tokens of a row; an encoder of sounds gets as many samples, and one of spectra with
            a fixed number of frames gets that number.

    Returns:
        By name: the main input, and attention_mask (batch, length) if the encoder takes one.

    Raises:
        CaptureError: [unknown-encoder] for an encoder that takes anything else.
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
        f"{type(model).__name__}: its encoder must read tokens, samples, or spectra of a fixed "
        f"length; got one that reads {name}. Such models are not supported yet.",
        code="unknown-encoder",
    )


def trace_parts(model: Any, *, attending: bool) -> tuple[list[TracedPart], Layout]:
    """Traces a model's parts.

    Args:
        model: a model with encoder and decoder of transformers, on cpu, in eval mode.
        attending: whether to add a decoder that also returns its cross-attention's weights.

    Returns:
        The parts "encoder", "bridge", "decoder" and, if asked for, "attending"; and the caches.

    Raises:
        CaptureError: if they cannot be traced, or [unsupported-cache] if layers differ or keep
            anything but keys and values.
    """
    is_text = model.main_input_name == "input_ids"
    length = _SOURCE if is_text else _SAMPLES
    inputs = example_inputs(model, batch=_BATCH, length=length)
    varies = model.main_input_name != "input_features"
    given = {name: Example(tensor, (0, 1) if varies else (0,)) for name, tensor in inputs.items()}
    with torch.no_grad():
        seen = model.get_encoder()(**example_inputs(model, batch=1, length=length))
        layout = _layout(model, seen)
    source, width = (int(size) for size in seen.last_hidden_state.shape[1:])
    # An encoder that shortens its input also says which of its results are padding.
    shortens = seen.get("attention_mask") is not None
    moves = (0, 1) if varies else (0,)
    states = {"encoder_hidden_states": Example(torch.zeros(_BATCH, source, width), moves)}
    masks = {name: given[name] for name in ("attention_mask",) if name in given}
    if shortens:
        masks["attention_mask"] = Example(torch.ones(_BATCH, source, dtype=torch.int64), (0, 1))

    def encode(tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        found = model.get_encoder()(**tensors)
        rest = (found.attention_mask.long(),) if shortens else ()
        return (found.last_hidden_state, *rest)

    def bridge(tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        found = tensors["encoder_hidden_states"]
        start = torch.zeros(found.shape[0], 1, dtype=torch.int64)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        model(
            decoder_input_ids=start,
            encoder_outputs=_outputs(seen, found, None),
            use_cache=True,
            **{CACHE: cache},
        )
        return _tensors(cache.cross_attention_cache)

    parts = [
        trace_part(
            model,
            "encoder",
            encode,
            examples=given,
            outputs=["hidden_states", "attention_mask"][: 2 if shortens else 1],
        ),
        trace_part(model, "bridge", bridge, examples=states, outputs=layout.cross_names),
    ]
    names = DECODERS[: 2 if attending else 1]
    parts += [_decoder(model, name, layout, masks=masks, seen=seen) for name in names]
    return parts, layout


def _decoder(
    model: Any,
    name: str,
    layout: Layout,
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
    # The decoder's own cache comes last, where npu_llm.capture.static_step looks for it.
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
        # Only its sizes are read: the bridge has computed what attention reads.
        unread = first.new_zeros(first.shape[0], first.shape[2], width)
        output = model(
            **named,
            encoder_outputs=_outputs(seen, unread, tensors.get("attention_mask")),
            use_cache=True,
            **{CACHE: cache},
            **({"output_attentions": True} if wants else {}),
        )
        weights = list(output.cross_attentions) if wants else []
        return [output.logits.float(), *_tensors(cache.self_attention_cache), *weights]

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


def _filled(tensors: Mapping[str, torch.Tensor], layout: Layout) -> EncoderDecoderCache:
    halves = []
    for names in (layout.own_names, layout.cross_names):
        layers = []
        for key, value in zip(names[::2], names[1::2], strict=True):
            layer = DynamicLayer()
            layer.keys, layer.values = tensors[key], tensors[value]
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
            layer.is_initialized = True
            layers.append(layer)
        halves.append(Cache(layers=layers))
    cache = EncoderDecoderCache(*halves)
    cache.is_updated = dict.fromkeys(range(layout.layers), True)
    return cache


def _tensors(cache: Any) -> list[torch.Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def _outputs(seen: Any, hidden: torch.Tensor, mask: torch.Tensor | None) -> Any:
    """Returns what an encoder returns, of the class that the model's own has."""
    if seen.get("attention_mask") is None:
        return BaseModelOutput(last_hidden_state=hidden)
    return type(seen)(last_hidden_state=hidden, attention_mask=mask)


def _layout(model: Any, seen: Any) -> Layout:
    """Runs one token eagerly to see what the decoder keeps."""
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
        kept = _tensors(half)
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
    return Layout(layers, own, cross, width, length if fixed else None)


def _unsupported(model: Any, got: str) -> CaptureError:
    return CaptureError(
        f"{type(model).__name__}: its decoder must keep keys and values of one size in all layers; "
        f"got {got}. Such models are not supported yet.",
        code="unsupported-cache",
    )

"""What torch computes for a short input and a few tokens, and how programs are compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from npu_llm.encoder_decoders.parts import example_inputs
from npu_llm.part_programs.reference import Reference, compute, differ
from npu_llm.verification.reference import Integers, Rounding

if TYPE_CHECKING:
    from npu_llm.checkpoint.streamed import StreamedWeights
    from npu_llm.encoder_decoders.running import Parts

__all__ = ["check_parts", "compute_reference"]

_TEXT, _SAMPLES, _PADDING, _TOKENS = 9, 4003, 3, 6


def compute_reference(
    model: Any,
    weights: StreamedWeights,
    *,
    compressed: Integers | None,
    rounding: Rounding,
) -> Reference:
    """Runs a model in torch.

    Args:
        model: a model with encoder and decoder of transformers in float32, on cpu.
        weights: the values of its parameters.
        compressed: which of them the programs hold as integers.
        rounding: what the programs' arithmetic does to values.
    """
    generator = torch.Generator().manual_seed(0)
    is_text = model.main_input_name == "input_ids"
    inputs = example_inputs(model, batch=2, length=_TEXT if is_text else _SAMPLES)
    vocabulary = int(model.config.get_text_config().vocab_size)
    for name, tensor in inputs.items():
        if name == "attention_mask":
            tensor[1, -_PADDING:] = 0
        elif tensor.is_floating_point():
            inputs[name] = torch.randn(tensor.shape, generator=generator)
        else:
            inputs[name] = torch.randint(2, vocabulary, tensor.shape, generator=generator)
    ids = torch.randint(2, vocabulary, (2, _TOKENS), generator=generator)

    def run() -> torch.Tensor:
        logits: torch.Tensor = model(**inputs, decoder_input_ids=ids, use_cache=False).logits
        return logits

    return compute(run, inputs, ids, weights=weights, compressed=compressed, rounding=rounding)


def check_parts(parts: Parts, reference: Reference, *, decoder: str) -> str | None:
    """Runs programs on the reference's inputs.

    Args:
        parts: the programs.
        reference: what torch computes.
        decoder: which of the decoders to run: "decoder" or "attending".

    Returns:
        What differs from torch, in words; None if nothing does.
    """
    hidden, mask = parts.encode(reference.inputs)
    cache = parts.new_cache(decoder)
    order = torch.tensor([1, 0])
    cache.read(hidden, mask)
    pieces = (slice(0, 3), slice(3, 4), slice(4, _TOKENS))
    found = [cache.next(reference.ids[:, tokens]).logits for tokens in pieces]
    cache.crop(4)
    # Rows that change places, after tokens that were forgotten.
    cache.reorder_cache(order)
    swapped = cache.next(reference.ids[order][:, 4:]).logits[order]
    for name, first, logits in (("tokens", 0, torch.cat(found, 1)), ("swapped rows", 4, swapped)):
        expected, rounded = reference.logits[:, first:], reference.rounded[:, first:]
        difference = differ(logits, expected, rounded, reference.precision)
        if difference is not None:
            return f"the {decoder}'s {name}: {difference}"
    return None

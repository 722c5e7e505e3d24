"""What torch computes for a short input and a few tokens, and how programs are compared with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from npu_compiler.verification.comparison import Difference, compare
from npu_llm.encoder_decoders.parts import example_inputs
from npu_llm.verification.eager_weights import EagerWeights, Integers, Rounding

if TYPE_CHECKING:
    from npu_llm.checkpoint.streamed import StreamedWeights
    from npu_llm.encoder_decoders.running import Parts

__all__ = ["Reference", "check_parts", "compute_reference", "differ", "read_reference"]

_TEXT, _SAMPLES, _PADDING, _TOKENS = 9, 4003, 3, 6
# How far off all logits together may be, as a multiple of what rounding does, or as a share.
_NORMS = 3.0
_SHARES = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Reference:
    """Inputs, and the logits that follow.

    Attributes:
        inputs: the encoder's, by name: two rows, the second padded if the model takes padding.
        ids: the decoder's tokens (2, tokens) int64.
        logits: (2, tokens, vocabulary) float32, by torch in float32 with the program's weights.
        rounded: the same, rounded as the program's arithmetic rounds.
        precision: the dtype to which `rounded` is rounded.
    """

    inputs: dict[str, torch.Tensor]
    ids: torch.Tensor
    logits: torch.Tensor
    rounded: torch.Tensor
    precision: str

    def write(self, path: Path) -> None:
        """Writes it, for `read_reference`."""
        tensors = {f"input.{name}": tensor for name, tensor in self.inputs.items()}
        tensors |= {"ids": self.ids, "logits": self.logits, "rounded": self.rounded}
        save_file(tensors, path, {"about": json.dumps({"precision": self.precision})})


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

    def run(how: Rounding | None) -> torch.Tensor:
        with torch.no_grad(), EagerWeights(weights, compressed, rounding=how):
            found = model(**inputs, decoder_input_ids=ids, use_cache=False).logits
        logits: torch.Tensor = found.float().contiguous()
        return logits

    precision = str(rounding.dtype).removeprefix("torch.")
    return Reference(inputs, ids, run(None), run(rounding), precision)


def read_reference(path: Path) -> Reference:
    """Reads a reference."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    inputs = {
        name.removeprefix("input."): tensor
        for name, tensor in tensors.items()
        if name.startswith("input.")
    }
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("input.")}
    return Reference(inputs=inputs, **rest, **about)


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


def differ(
    logits: torch.Tensor, expected: torch.Tensor, rounded: torch.Tensor, precision: str
) -> Difference | str | None:
    """Returns how logits differ from torch's; None if they do not, but for rounding.

    Args:
        logits: (..., vocabulary) float32, as are the others.
        expected: torch's.
        rounded: torch's, rounded as the program's arithmetic rounds.
        precision: to which dtype that is.
    """
    found = compare([logits], [expected], precision=precision, noisy=lambda: [[rounded]])
    distance, size = float((logits - expected).norm()), float(expected.norm())
    allowed = max(_NORMS * float((rounded - expected).norm()), _SHARES[precision] * size)
    if found is None and not distance <= allowed and size > 0:
        return f"all logits together are off by {distance / size:.3g} of their size"
    return found

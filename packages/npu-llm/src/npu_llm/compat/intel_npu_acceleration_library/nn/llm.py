"""Parts of language models, and generation within a fixed length."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import npu_llm
from npu_llm.cache_names import CACHE
from npu_llm.compat.alias import absent_name
from npu_llm.compat.intel_npu_acceleration_library.backend import MLP, run_factory
from npu_llm.errors import ContextError, OptionError
from npu_llm.generation.language_model import LanguageModel

__all__ = ["PhiMLP", "generate_with_static_shape", "lshift_insert", "warm_up_decoder_model"]


class PhiMLP(torch.nn.Module):
    """The two linear layers of a Phi block with GELU between them, as one program in float16."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        """Stores weight (intermediate, inputs), bias, weight (inputs, intermediate), bias."""
        super().__init__()
        self.op_parameters = parameters
        self._kind = partial(
            MLP, intermediate_size=parameters[0].shape[0], activation="gelu", bias=True
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the block's result for x (..., inputs), in its shape."""
        rows = x.reshape(-1, x.shape[-1])
        result: torch.Tensor = run_factory(rows, self.op_parameters, self._kind)
        return result.reshape(x.shape)

    @staticmethod
    def fromTorch(layer: torch.nn.Module, dtype: torch.dtype = torch.float16) -> PhiMLP:
        """Converts transformers' PhiMLP."""
        return PhiMLP([weight.detach().to(dtype) for weight in layer.parameters()])


def lshift_insert(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """Drops the first column of a tensor (rows, columns), and appends a value to row 0."""
    shifted = torch.roll(tensor, shifts=-1, dims=-1)
    shifted[0, -1] = value
    return shifted


def generate_with_static_shape(
    model: Any,
    input_ids: torch.Tensor,
    max_length: int,
    attention_mask: torch.Tensor | None = None,
    use_past: bool = True,
    pad_token_id: int | None = None,
    **options: Any,
) -> Iterator[int | torch.Tensor]:
    """Generates greedily until prompt and answer have max_length tokens.

    Models of npu_llm use npu_llm.generate_with_static_shape, without end tokens. For others the
    prompt is left-padded to max_length, so that all prompts need the same programs.

    Args:
        model: a model from NPUModelForCausalLM.from_pretrained, or a transformers model after
            compile.
        input_ids: (1, tokens).
        max_length: number of tokens of prompt and answer.
        attention_mask: (1, tokens); ones by default.
        use_past: whether to keep keys and values between steps.
        pad_token_id: padding token of the prompt.
        options: other arguments; `position_ids` are rejected.

    Raises:
        OptionError: [static-padding] without a pad_token_id, or with position_ids.
        ContextError: [context-overflow] if the prompt is longer than max_length.
    """
    if pad_token_id is None or "position_ids" in options:
        raise OptionError(
            "`generate_with_static_shape` must have a pad_token_id, and no position_ids, which "
            f"it computes, got {pad_token_id!r} and {sorted(options)}. Pass the tokenizer's.",
            code="static-padding",
        )
    if input_ids.shape[-1] > max_length:
        raise ContextError(
            f"`max_length` must be at least the prompt's {input_ids.shape[-1]:,} tokens, got "
            f"{max_length:,}. Shorten the prompt.",
            code="context-overflow",
        )
    if isinstance(model, LanguageModel):
        return npu_llm.generate_with_static_shape(
            model,
            input_ids,
            max_length,
            attention_mask,
            use_past,
            pad_token_id,
            do_sample=False,
            eos_token_id=None,
        )
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    room = max_length - input_ids.shape[-1]
    padded = torch.nn.functional.pad(input_ids, (room, 0), value=pad_token_id)
    return _steps(model, padded, torch.nn.functional.pad(mask, (room, 0)), room, use_past=use_past)


@torch.no_grad()
def _steps(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, count: int, *, use_past: bool
) -> Iterator[int]:
    past = None
    for _ in range(count):
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[-1] :]
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=places,
            use_cache=use_past,
            **{CACHE: past},
        )
        token = int(out.logits[0, -1].argmax())
        yield token
        if use_past:
            past, ids = out[CACHE], ids.new_tensor([[token]])
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        else:
            ids, mask = lshift_insert(ids, token), lshift_insert(mask, 1)


def warm_up_decoder_model(
    tokenizer: Any, model: Any, model_seq_length: int, use_past: bool = True
) -> None:
    """Compiles and runs the programs for generation up to a length.

    Args:
        tokenizer: the model's tokenizer; its end token is the prompt.
        model: see generate_with_static_shape.
        model_seq_length: tokens of later prompts and answers.
        use_past: see generate_with_static_shape.
    """
    if isinstance(model, LanguageModel):
        npu_llm.warm_up_decoder_model(tokenizer, model, model_seq_length, use_past)
        return
    prompt = tokenizer(tokenizer.eos_token, return_tensors="pt")["input_ids"]
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    tokens = generate_with_static_shape(
        model, prompt, model_seq_length, use_past=use_past, pad_token_id=pad
    )
    for _ in zip(range(2), tokens, strict=False):  # the prompt, and one token after it
        pass


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)

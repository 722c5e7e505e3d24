"""Token-by-token generation within a fixed length, as in intel-npu-acceleration-library.

Names and arguments are those of that library. The functions run in any pipeline. In the static one
all steps have the same sizes, because the cache is allocated at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from npu_llm.cache_names import CACHE
from npu_llm.decoding import pad_of, stops_of, tokens
from npu_llm.errors import ContextError, OptionError
from npu_llm.generation.language_model import LanguageModel
from npu_llm.generation.lazy_model import LazyModel
from npu_llm.generation.model import NPUModelForCausalLM
from npu_llm.kv_cache.cache import StepCache, check_prompt

__all__ = ["generate_with_static_shape", "warm_up_decoder_model"]


def generate_with_static_shape(
    model: LanguageModel,
    input_ids: torch.Tensor,
    max_length: int,
    attention_mask: torch.Tensor | None = None,
    use_past: bool = True,
    pad_token_id: int | None = None,
    **options: Any,
) -> Iterator[int | torch.Tensor]:
    """Generates one token at a time, up to max_length tokens of prompt and answer together.

    Args:
        model: a model from NPUModelForCausalLM.from_pretrained or npu_llm.load.
        input_ids: (batch, tokens) int64.
        max_length: maximum number of tokens of prompt and answer.
        attention_mask: (batch, tokens), 0 for left padding; ones by default.
        use_past: whether to keep keys and values between steps; otherwise each token recomputes the
            whole sequence.
        pad_token_id: token that fills a row after its end; the model's pad token by default.
        options: other arguments of generate for greedy search or sampling, such as do_sample,
            temperature, top_k, top_p, eos_token_id and stopping_criteria.

    Returns:
        An iterator over the next token: an int for one row, (batch,) int64 on cpu for several. It
        ends after max_length tokens, or when every row has an end token.

    Raises:
        ContextError: [context-overflow] if the prompt leaves no room for a token, or max_length
            exceeds the model's context.
        OptionError: [foreign-model] for a model of another class, [static-search] for beam search
            and other searches that return tokens only at their end, [step-shape] or [step-dtype]
            for invalid tokens or an invalid mask.
    """
    full = _full(model)
    check_prompt(input_ids, attention_mask, past=0)
    length = input_ids.shape[-1]
    context = full.context_length
    if length >= max_length or (context is not None and max_length > context):
        bound = "" if context is None else f", and at most {context:,}, the model's context"
        raise ContextError(
            f"`max_length` must be more than the prompt's {length:,} tokens{bound}, got "
            f"{max_length:,}. Shorten the prompt, or load the model with a larger max_context.",
            code="context-overflow",
        )
    if options.get("num_beams", 1) != 1 or "assistant_model" in options:
        raise OptionError(
            "`generate_with_static_shape` must be used with greedy search or sampling, which "
            "yield one token at a time, got another search. Call model.generate for it.",
            code="static-search",
        )
    if pad_token_id is not None:
        options["pad_token_id"] = pad_token_id
    cache = full.new_cache()
    cache.reserve(max_length)

    def search(_: Any, ids: torch.Tensor, **arguments: Any) -> Iterator[torch.Tensor]:
        arguments.pop(CACHE)  # our cache, passed to generate
        return _tokens(full, ids, cache, use_past=use_past, **arguments)

    # generate prepares config, processors and criteria, and passes them to the search.
    found: Iterator[torch.Tensor] = full.generate(
        input_ids,
        attention_mask=attention_mask,
        max_length=max_length,
        past_key_values=cache,
        custom_generate=search,
        **options,
    )
    if input_ids.shape[0] == 1:
        return (int(chosen) for chosen in found)
    return found


def warm_up_decoder_model(
    tokenizer: Any, model: LanguageModel, model_seq_length: int, use_past: bool = True
) -> None:
    """Compiles and runs the programs for generation up to a length, so that the first call is fast.

    Args:
        tokenizer: the model's tokenizer.
        model: a model from NPUModelForCausalLM.from_pretrained or npu_llm.load.
        model_seq_length: tokens of later prompts and answers.
        use_past: see generate_with_static_shape.

    Raises:
        ContextError: [context-overflow] if the model's context is shorter.
        OptionError: [foreign-model] for a model of another class.
    """
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]
    half = max(model_seq_length // 2, 1)
    prompt = ids.repeat(1, -(-half // ids.shape[1]))[:, :half]
    limit = min(model_seq_length, half + 2)
    for chosen in generate_with_static_shape(
        model, prompt, max(limit, half + 1), use_past=use_past, do_sample=False, eos_token_id=None
    ):
        del chosen  # only the run matters


def _tokens(
    model: NPUModelForCausalLM,
    input_ids: torch.Tensor,
    cache: StepCache,
    *,
    use_past: bool,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    **_: Any,
) -> Iterator[torch.Tensor]:
    held = cache if use_past else _Forgetful(model, input_ids)

    def first(ids: torch.Tensor, **inputs: torch.Tensor | None) -> torch.Tensor:
        logits: torch.Tensor = model(ids, past_key_values=cache, logits_to_keep=1, **inputs).logits
        return logits.cpu()

    yield from tokens(
        first,
        input_ids,
        cache=held,
        attention_mask=attention_mask,
        position_ids=position_ids,
        logits_processor=logits_processor,
        stops=stops_of(stopping_criteria),
        do_sample=bool(generation_config.do_sample),
        pad=pad_of(generation_config),
    )


class _Forgetful(StepCache):
    """A cache without content, for use_past=False: each step recomputes all tokens."""

    def __init__(self, model: NPUModelForCausalLM, input_ids: torch.Tensor) -> None:
        super().__init__()
        self._model = model
        self._read = input_ids.cpu()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns 0."""
        return 0

    @property
    def is_croppable(self) -> bool:
        """False: there is nothing to crop."""
        return False

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs all tokens so far and the new one."""
        self._read = torch.cat([self._read, values["input_ids"]], 1)
        output = self._model(self._read, attention_mask=values["attention_mask"], logits_to_keep=1)
        logits: torch.Tensor = output.logits
        return logits.to(device)

    def _keep(self, length: int) -> None:
        raise AssertionError("a cache without tokens is not cut")


def _full(model: Any) -> NPUModelForCausalLM:
    """Returns the model with transformers' interface, also for one from npu_llm.load."""
    if isinstance(model, LazyModel):
        return model.full
    if not isinstance(model, NPUModelForCausalLM):
        raise OptionError(
            "`model` must come from NPUModelForCausalLM.from_pretrained, got a "
            f"{type(model).__name__}. Load it with that class.",
            code="foreign-model",
        )
    return model

"""Perplexity of a model on a text, alone or compared with another precision of the same model.

The default text lies beside this module as evaluation.txt, and was written for this purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from npu_compiler.quantize import perplexity
from npu_llm.errors import OptionError
from npu_runtime.public_calls import public_call

__all__ = ["EvaluationResult", "default_text", "evaluate", "read_text"]

# Of a window that is read in pieces. Shorter ones gave SmolLM2 the same perplexity, more slowly.
_PIECE_TOKENS = 32


@dataclass(frozen=True)
class EvaluationResult:
    """A model's perplexity on a text.

    Attributes:
        precision: name of the model's precision.
        perplexity: exp of the mean negative log-likelihood of a scored token.
        tokens: how many the text has.
        window: tokens per call.
        stride: tokens from one window to the next.
        kv_cache: what keys and values were stored as; None for the dtype of the arithmetic.
    """

    precision: str
    perplexity: float
    tokens: int
    window: int
    stride: int
    kv_cache: str | None = None

    @public_call
    def loss(self, exact: EvaluationResult) -> float:
        """How far the perplexity is above another result's: 0.01 for 1 %."""
        return self.perplexity / exact.perplexity - 1


@public_call
def evaluate(
    model: Any, text: str, *, window: int = 256, stride: int | None = None
) -> EvaluationResult:
    """Measures a model's perplexity.

    Args:
        model: an NPUModelForCausalLM that has a tokenizer.
        text: at least one window of tokens.
        window: tokens per call; each is scored given those before it in its window. A model whose
            keys and values are stored in fewer bits reads the window in pieces, since a step uses
            its own keys and values before they are stored.
        stride: tokens from one window to the next; by default the window, without overlap.

    Raises:
        OptionError: [eval-text] for a text shorter than a window, a window of fewer than 2 tokens
            or longer than the model's context, or a stride that is not between 1 and the window;
            [foreign-model] for a model without its tokenizer.
    """
    if getattr(model, "tokenizer", None) is None:
        raise OptionError(
            "model: must be one that npu_llm.load returned, with its tokenizer; got a "
            f"{type(model).__name__} without one. Load it from a folder that holds the tokenizer.",
            code="foreign-model",
        )
    step = window if stride is None else stride
    tokens = model.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0]
    bound = model.context_length
    fits = bound is None or window <= bound
    if window < 2 or not 1 <= step <= window or len(tokens) < window or not fits:
        context = "no bound" if bound is None else f"{bound:,} tokens"
        raise OptionError(
            "evaluate: the text must have at least one window of tokens, the window must be "
            "between 2 and the context's length, and the stride between 1 and the window; got "
            f"{len(tokens):,} tokens, window {window:,}, stride {step:,}, context of {context}. "
            "Pass a longer text or a smaller window.",
            code="eval-text",
        )

    def logits(part: torch.Tensor) -> torch.Tensor:
        if model.kv_cache is None:
            found: torch.Tensor = model(part, use_cache=False).logits
            return found
        cache, pieces = model.new_cache(), torch.split(part, _PIECE_TOKENS, dim=1)
        return torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], dim=1)

    value = perplexity(logits, tokens, window=window, stride=step)
    return EvaluationResult(model.precision.name, value, len(tokens), window, step, model.kv_cache)


def default_text() -> str:
    """Returns the text that comes with npu-llm: a story, explanations and minutes, 2,100 words."""
    return (resources.files("npu_llm") / "evaluation.txt").read_text(encoding="utf-8")


@public_call
def read_text(file: Path) -> str:
    """Reads a text file in UTF-8.

    Raises:
        OptionError: [eval-text] for a file that cannot be read or is not valid UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "bytes that are not UTF-8"
        raise OptionError(
            f"{file}: must be a text file in UTF-8; got {reason}. Pass another file.",
            code="eval-text",
        ) from failure

"""Perplexity of a model on a text, alone or compared with another precision.

The default text, text.txt next to this module, was written for this purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from npu_compiler.quantize import perplexity
from npu_llm.errors import OptionError
from npu_runtime.public_calls import public_call

__all__ = ["EvaluationResult", "default_text", "evaluate", "read_text"]

# Chunk size of a window. Shorter chunks gave SmolLM2 the same perplexity, more slowly.
_PIECE_TOKENS = 32
# Scored tokens of a window at a time: as many rows of logits are in memory at once.
_LONG_PIECE_TOKENS = 256


@dataclass(frozen=True)
class EvaluationResult:
    """A model's perplexity on a text.

    Attributes:
        precision: name of the model's precision.
        perplexity: exp of the mean negative log-likelihood of a scored token.
        tokens: number of tokens in the text.
        window: tokens per call.
        stride: tokens between the starts of windows.
        kv_cache: storage type of keys and values; None for the dtype of the arithmetic.
        sparse_attention: selection of keys, as text; None for all.
        scored_from: number of tokens without a score at the start of each window.
    """

    precision: str
    perplexity: float
    tokens: int
    window: int
    stride: int
    kv_cache: str | None = None
    sparse_attention: str | None = None
    scored_from: int | None = None

    @public_call
    def loss(self, exact: EvaluationResult) -> float:
        """Returns the increase of perplexity over another result: 0.01 for 1 %."""
        return self.perplexity / exact.perplexity - 1


@public_call
def evaluate(
    model: Any,
    text: str,
    *,
    window: int = 256,
    stride: int | None = None,
    scored_from: int | None = None,
    on_tokens: Callable[[int, int], None] = lambda done, total: None,
) -> EvaluationResult:
    """Measures a model's perplexity.

    Args:
        model: an NPUModelForCausalLM with a tokenizer.
        text: at least one window of tokens.
        window: tokens per call; each is scored given the earlier ones in its window. A model with
            quantized keys and values reads the window in chunks, because a step uses its own keys
            and values before quantization.
        stride: tokens between the starts of windows; the window size by default, without overlap.
        scored_from: number of tokens without a score at the start of a window, to measure effects
            of long contexts; None to score all. Required for a model with sparse attention, at
            least its number of densely attended tokens; it reads the others one by one, as in
            generation.
        on_tokens: called between steps with the number of tokens read, and their total.

    Raises:
        OptionError: [eval-text] for a text shorter than a window, a window of fewer than 2 tokens
            or longer than the model's context, a stride that is not between 1 and the window, a
            scored_from that leaves nothing to score, or one too small for sparse attention;
            [foreign-model] for a model without its tokenizer.
    """
    if not getattr(model, "has_tokenizer", False):
        raise OptionError(
            "`model` must come from npu_llm.load, with its tokenizer, got a "
            f"{type(model).__name__} without one. Load it from a folder with a tokenizer.",
            code="foreign-model",
        )
    step = window if stride is None else stride
    tokens = torch.tensor(model.text_tokenizer.encode(text))
    bound = model.context_length
    fits = bound is None or window <= bound
    if window < 2 or not 1 <= step <= window or len(tokens) < window or not fits:
        context = "no bound" if bound is None else f"{bound:,} tokens"
        raise OptionError(
            "evaluate: `text` must have at least one window of tokens, the window must be "
            "between 2 and the context's length, and the stride between 1 and the window, got "
            f"{len(tokens):,} tokens, window {window:,}, stride {step:,}, context of {context}. "
            "Pass a longer text or a smaller window.",
            code="eval-text",
        )

    chosen = model.sparse_attention
    dense = 1 if chosen is None else chosen.dense_up_to
    if scored_from is not None or chosen is not None:
        if not dense <= (scored_from or 0) < window:
            raise OptionError(
                "evaluate: `scored_from` must be less than the window, and at least the number "
                f"of densely attended tokens, got {scored_from}, window {window:,}, {dense:,} "
                "tokens. Pass a larger window.",
                code="eval-text",
            )
        value = _perplexity_of_ends(
            model, tokens, window, step, int(scored_from or 0), on_tokens=on_tokens
        )
        return EvaluationResult(
            model.precision.name, value, len(tokens), window, step, model.kv_cache,
            None if chosen is None else str(chosen), scored_from,
        )  # fmt: skip

    done, total = 0, len(_starts(tokens, window, step)) * window
    on_tokens(done, total)

    def logits(part: torch.Tensor) -> torch.Tensor:
        nonlocal done
        if model.kv_cache is None:
            found: torch.Tensor = model.step(part, model.new_cache())
        else:
            cache, pieces = model.new_cache(), torch.split(part, _PIECE_TOKENS, dim=1)
            rows = [model.step(piece, cache) for piece in pieces]
            found = torch.cat(rows, dim=1)
        done += window
        on_tokens(done, total)
        return found

    value = perplexity(logits, tokens, window=window, stride=step)
    return EvaluationResult(model.precision.name, value, len(tokens), window, step, model.kv_cache)


def _starts(tokens: torch.Tensor, window: int, stride: int) -> list[int]:
    """Returns the starts of windows; the last window ends with the text."""
    last = len(tokens) - window
    return [*range(0, last, stride), last]


def _perplexity_of_ends(
    model: Any,
    tokens: torch.Tensor,
    window: int,
    stride: int,
    scored_from: int,
    *,
    on_tokens: Callable[[int, int], None],
) -> float:
    """Returns the perplexity of windows' last tokens, with few logits in memory."""
    total, count, scored = 0.0, 0, 0
    starts = _starts(tokens, window, stride)
    to_read = len(starts) * (window - 1)
    on_tokens(0, to_read)
    for number, start in enumerate(starts):
        part = tokens[start : start + window]
        first = max(scored - start, scored_from)
        cache = model.new_cache()
        for begin, end in _pieces(model, window - 1):
            wanted = min(end - begin, end - first + 1)
            logits = model.step(part[None, begin:end], cache, logits_to_keep=max(wanted, 1))[0]
            if wanted > 0:
                following = part[end + 1 - wanted : end + 1]
                total += float(
                    torch.nn.functional.cross_entropy(logits, following, reduction="sum")
                )
            on_tokens(number * (window - 1) + end, to_read)
        count += window - first
        scored = start + window
    mean = total / count
    return math.exp(mean) if mean < 700 else math.inf


def _pieces(model: Any, length: int) -> Iterator[tuple[int, int]]:
    """Yields start and end of each chunk that the model reads."""
    together = _LONG_PIECE_TOKENS if model.kv_cache is None else _PIECE_TOKENS
    dense = length if model.sparse_attention is None else model.sparse_attention.dense_up_to
    for begin in range(0, dense, together):
        yield begin, min(begin + together, dense, length)
    for begin in range(dense, length):
        yield begin, begin + 1


def default_text() -> str:
    """Returns the built-in text: a story, explanations and minutes, 2,100 words."""
    return (resources.files("npu_llm.evaluation") / "text.txt").read_text(encoding="utf-8")


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
            f"`{file}` must be a text file in UTF-8, got {reason}. Pass another file.",
            code="eval-text",
        ) from failure

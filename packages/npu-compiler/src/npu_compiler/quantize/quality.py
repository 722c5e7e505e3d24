"""Quality of a compressed model: perplexity or output error against the original, with a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npu_compiler.errors import OptionError, QualityError
from npu_runtime.public_calls import public_call

__all__ = ["QualityReport", "compare_outputs", "compare_perplexity", "perplexity"]


@dataclass(frozen=True)
class QualityReport:
    """A metric of two models.

    Attributes:
        metric: "perplexity" or "output error".
        before: value of the original; 0 for an output error.
        after: value of the compressed model.
        relative: loss: after / before - 1 for a perplexity; the output error, which is already
            relative.
        limit: maximum loss, or None for no limit.
    """

    metric: str
    before: float
    after: float
    relative: float
    limit: float | None = None

    @property
    def is_within_limit(self) -> bool:
        """Whether the loss is within the limit; never for NaN."""
        return self.limit is None or self.relative <= self.limit

    def check(self) -> QualityReport:
        """Returns the report if the loss is within the limit.

        Raises:
            QualityError: [quality-gate] if the loss is above the limit.
        """
        if self.is_within_limit:
            return self
        raise QualityError(
            f"{self.metric}: the loss must be at most {self.limit:.2%}, got {self.relative:.2%} "
            f"({self.before:.4g} before, {self.after:.4g} after). Give more calibration data, a "
            "smaller group_size, int8 instead of int4, or raise the limit.",
            code="quality-gate",
        )

    def __str__(self) -> str:
        limit = "" if self.limit is None else f", limit {self.limit:.2%}"
        return (
            f"{self.metric}: {self.before:.4g} before, {self.after:.4g} after "
            f"({self.relative:+.2%}{limit})"
        )


@public_call
def perplexity(
    logits: Callable[[torch.Tensor], Any],
    tokens: torch.Tensor,
    *,
    window: int = 512,
    stride: int | None = None,
) -> float:
    """Measures the perplexity of a causal language model on a text, in sliding windows.

    Each call has exactly `window` tokens, so that a program of one fixed size suffices. The last
    window ends with the text. Each token is scored at most once. Tokens without context (the first
    token of a window without overlap) are not scored.

    Args:
        logits: takes int64 tokens of shape (1, window); returns logits of shape (1, window,
            vocabulary), or a dict or object with an item or attribute `logits`.
        tokens: the text, int64 of shape (length,), at least one window.
        window: tokens per call.
        stride: tokens from one window to the next; by default the window, without overlap. With a
            smaller stride, every scored token after the first window has at least window - stride
            tokens of context.

    Returns:
        exp of the mean negative log-likelihood of the scored tokens.

    Raises:
        OptionError: [quality-input] for an invalid text, window, stride or result.
    """
    step = window if stride is None else stride
    if tokens.dim() != 1 or window < 2 or not 1 <= step <= window or len(tokens) < window:
        raise OptionError(
            "perplexity: `tokens` must be one row of at least one window, `window` at least 2 and "
            f"`stride` from 1 to window, got shape {tuple(tokens.shape)}, window {window}, stride "
            f"{stride}. Pass a "
            "longer text or a smaller window.",
            code="quality-input",
        )
    total, count, scored = 0.0, 0, 0
    last = len(tokens) - window
    starts = [*range(0, last, step), last]
    with torch.no_grad():
        for start in starts:
            part = tokens[start : start + window]
            values = _logits_of(logits(part[None]), window)
            # A token is scored by the logits of the previous position.
            first = max(scored - start, 1)
            total += float(
                torch.nn.functional.cross_entropy(
                    values[first - 1 : -1].float(), part[first:].to(values.device), reduction="sum"
                )
            )
            count += window - first
            scored = start + window
    mean = total / count
    return math.exp(mean) if mean < 700 else math.inf


@public_call
def compare_perplexity(
    before: Callable[[torch.Tensor], Any],
    after: Callable[[torch.Tensor], Any],
    tokens: torch.Tensor,
    *,
    limit: float | None = None,
    window: int = 512,
    stride: int | None = None,
) -> QualityReport:
    """Compares the perplexity of two causal language models on one text.

    Args:
        before: original model, as `logits` of perplexity.
        after: compressed model.
        tokens: as for perplexity.
        limit: for QualityReport.check: 0.01 allows a perplexity that is 1 % higher.
        window: tokens per call.
        stride: tokens from one window to the next.

    Raises:
        OptionError: [quality-input], as for perplexity.
    """
    first = perplexity(before, tokens, window=window, stride=stride)
    second = perplexity(after, tokens, window=window, stride=stride)
    return QualityReport("perplexity", first, second, second / first - 1, limit)


@public_call
def compare_outputs(
    before: Callable[..., Any],
    after: Callable[..., Any],
    inputs: Iterable[Any],
    *,
    limit: float | None = None,
) -> QualityReport:
    """Measures the relative difference between a model's results and the original's.

    The error is the norm of the difference divided by the norm of the original's results, over all
    inputs and all float results.

    Args:
        before: original model.
        after: compressed model.
        inputs: one per call: a tensor, a tuple of arguments, or a dict of arguments by name.
        limit: for QualityReport.check: 0.01 allows an error of 1 %.

    Raises:
        OptionError: [quality-input] if there are no inputs, or the results have different
            structures or no floats.
    """
    difference = total = 0.0
    with torch.no_grad():
        for call in inputs:
            args, kwargs = call_arguments(call)
            expected = _floats(before(*args, **kwargs))
            received = _floats(after(*args, **kwargs))
            if [x.shape for x in expected] != [x.shape for x in received] or not expected:
                raise OptionError(
                    "compare_outputs: both models must return the same float results, got shapes "
                    f"{[tuple(x.shape) for x in expected]} and "
                    f"{[tuple(x.shape) for x in received]}. Compare a model with its own "
                    "compressed form.",
                    code="quality-input",
                )
            for left, right in zip(expected, received, strict=True):
                exact = left.cpu().double()
                difference += float((right.cpu().double() - exact).square().sum())
                total += float(exact.square().sum())
    if total == 0:
        raise OptionError(
            "compare_outputs: `inputs` must give results that are not all zero, got none. Pass "
            "other inputs.",
            code="quality-input",
        )
    error = math.sqrt(difference / total)
    return QualityReport("output error", 0.0, error, error, limit)


def call_arguments(call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of one call of calibration or comparison.

    Args:
        call: one tensor, a tuple or list of arguments, or a mapping of arguments by name.
    """
    if isinstance(call, Mapping):
        return (), dict(call)
    return (tuple(call), {}) if isinstance(call, (tuple, list)) else ((call,), {})


def _logits_of(result: Any, window: int) -> torch.Tensor:
    found = result.get("logits") if isinstance(result, Mapping) else result
    found = getattr(found, "logits", found)
    if not isinstance(found, torch.Tensor):
        found = torch.as_tensor(found) if hasattr(found, "__array__") else None
    if found is None or found.dim() != 3 or tuple(found.shape[:2]) != (1, window):
        received = type(result).__name__ if found is None else tuple(found.shape)
        raise OptionError(
            f"perplexity: `logits` must be of shape (1, {window}, vocabulary), got {received}. "
            "Wrap "
            "the model in a function that returns them.",
            code="quality-input",
        )
    return found[0].detach()


def _floats(result: Any) -> list[torch.Tensor]:
    # A result class that is a mapping (as in transformers) equals a plain dict.
    plain = dict(result) if isinstance(result, Mapping) else result
    return [
        leaf.detach()
        for leaf in pytree.tree_leaves(plain)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]

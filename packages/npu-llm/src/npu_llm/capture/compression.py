"""Quantizes the weights of a step, to nearest or calibrated by a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.choices import PipelineName, check_group_size
from npu_llm.errors import OptionError
from npu_llm.kv_cache.static_layout import KEY_POSITIONS
from npu_llm.precision import Precision
from npu_llm.progress import Advance

if TYPE_CHECKING:
    from npu_llm.capture.step import CapturedStep

__all__ = ["Compression", "compress", "compress_by_text"]

# Tokens per call, and maximum number of calls: more improve GPTQ little, but take longer.
_CALL_TOKENS, _CALLS = 256, 32
# Fewer tokens do not represent the distribution of the products' inputs.
_FEWEST_TOKENS = 64


@dataclass(frozen=True)
class Compression:
    """Quantization options.

    Attributes:
        group_size: number of weights of a row that share a scale, for int4; None for the pipeline's
            default.
        symmetric: whether to omit zero points: slightly smaller and less accurate.
        text: a calibration text file; int4 weights are rounded to minimize the error of products
            with its tokens (GPTQ). None to round to nearest.
        kept: folder of the weights rounded with the text, including those of an interrupted run;
            None for none.
        advance: reports the number of rounded weights.
    """

    group_size: int | None = None
    symmetric: bool = False
    text: Path | None = None
    kept: Path | None = None
    advance: Advance | None = None

    def __post_init__(self) -> None:
        """Checks the group size.

        Raises:
            OptionError: [group-size].
        """
        check_group_size(self.group_size)

    def suited_to(self, pipeline: PipelineName) -> Compression:
        """Returns the options with a pipeline's defaults.

        Static programs take weights with one scale per output and no zero points as inputs, see
        npu_llm.capture.weight_inputs. Others use groups of 64.
        """
        if self.group_size is not None:
            return self
        if pipeline == "static":
            return replace(self, symmetric=True)
        return replace(self, group_size=64)


def compress(
    model: Any, precision: Precision, compression: Compression, weights: StreamedWeights
) -> None:
    """Quantizes the weights of an openvino.Model in place, to nearest."""
    from npu_compiler.quantize import compress_weights

    compress_weights(
        model,
        mode=precision.weights,
        group_size=compression.group_size,
        symmetric=compression.symmetric,
        read=weights.read,
    )


def compress_by_text(
    model: Any, captured: CapturedStep, compression: Compression, tokenizer: Any | None
) -> Any:
    """Quantizes weights to int4, calibrated by the tokens of a text.

    Args:
        model: an openvino.Model in float32 with the traced step's inputs, including the cache.
        captured: the step.
        compression: options with a text.
        tokenizer: the model's tokenizer.

    Returns:
        The quantized model; the given one may be modified.

    Raises:
        OptionError: [quantize-text] for a file that cannot be read or is too short, or a model
            without a tokenizer or with recurrent states.
    """
    from npu_compiler.quantize import compress_weights_by_data

    assert compression.text is not None
    advance = compression.advance

    def on_progress(done: int, total: int) -> None:
        if advance is not None:
            advance(done / total, f"weight {done:,} of {total:,}")

    if captured.states:
        raise _unusable(compression.text, "the model has recurrent states")
    return compress_weights_by_data(
        model,
        _samples(captured, model, _tokens(compression.text, tokenizer)),
        group_size=compression.group_size,
        symmetric=compression.symmetric,
        kept=compression.kept,
        on_progress=on_progress,
    )


def _tokens(path: Path, tokenizer: Any | None) -> list[int]:
    if tokenizer is None:
        raise _unusable(path, "the model has no tokenizer for it")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as failure:
        raise _unusable(path, str(failure)) from failure
    tokens = list(tokenizer(text, verbose=False)["input_ids"])
    if len(tokens) < _FEWEST_TOKENS:
        raise _unusable(path, f"{len(tokens)} tokens")
    return tokens


def _samples(captured: CapturedStep, model: Any, tokens: list[int]) -> list[list[Any]]:
    """Returns calls of the step without a past, with chunks spread over the text."""
    caches = model.get_parameters()[len(captured.inputs) :]
    shapes = [_without_length(cache.get_output_partial_shape(0)) for cache in caches]
    empty = [
        np.zeros(shape, cache.get_element_type().to_dtype())
        for shape, cache in zip(shapes, caches, strict=True)
    ]
    size = min(_CALL_TOKENS, len(tokens))
    pieces = range(0, len(tokens) - size + 1, size)
    calls = min(_CALLS, len(pieces))
    samples = []
    for call in range(calls):
        start = pieces[call * len(pieces) // calls]
        ids = np.asarray([tokens[start : start + size]], np.int64)
        values = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(size, dtype=np.int64)[None],
            "logits_to_keep": np.arange(size, dtype=np.int64),
            KEY_POSITIONS: np.arange(size, dtype=np.int64),
        }
        samples.append([values[name] for name in captured.inputs] + empty)
    return samples


def _without_length(shape: Any) -> tuple[int, ...]:
    """Returns the shape of one sequence's empty cache."""
    batch, *rest = shape
    assert batch.is_dynamic
    return (1, *(0 if size.is_dynamic else size.get_length() for size in rest))


def _unusable(path: Path, reason: str) -> OptionError:
    return OptionError(
        f"`--data` must be a readable text of at least {_FEWEST_TOKENS} tokens, got {path}: "
        f"{reason}. Pass some pages of typical input and output.",
        code="quantize-text",
    )

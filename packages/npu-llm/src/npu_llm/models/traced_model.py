"""A transformers model, with its step traced to build an entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_llm.capture.compression import Compression
from npu_llm.capture.functional import make_functional
from npu_llm.capture.step import CapturedStep, capture_step
from npu_llm.checkpoint.facts import context_length
from npu_llm.checkpoint.loading import load_model, load_tokenizer
from npu_llm.checkpoint.saved import save_config
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.models.kernel_step import KernelStep, PackedParameters, lower_step, rounding_in
from npu_llm.models.load_options import LoadOptions
from npu_llm.precision import Precision
from npu_llm.progress import Advance, Progress
from npu_llm.tokenizer.tokenizer import agrees
from npu_llm.verification.reference import TorchReference, compute_reference

__all__ = ["TracedModel", "load_traced"]


def load_traced(
    source: ModelSource, options: LoadOptions, progress: Progress, *, has_long_ropes: bool
) -> TracedModel:
    """Loads and traces a model; raises the errors of load_model, load_tokenizer and capture_step.

    Args:
        source: the model's files.
        options: load options.
        progress: receives the stages.
        has_long_ropes: see npu_llm.checkpoint.loading.load_model.
    """
    with progress.stage("weights"):
        model, weights = load_model(
            source,
            trust_remote_code=options.trust_remote_code,
            ignore_unexpected=options.ignore_unexpected,
            has_long_ropes=has_long_ropes,
        )
    with progress.stage("tokenizer"):
        tokenizer = load_tokenizer(source, trust_remote_code=options.trust_remote_code)
    with progress.stage("capture"):
        captured = capture_step(
            model, adapted_modules=options.adapted_modules, on_progress=progress.advance
        )
        progress.advance(1.0, "making its calls functional")
        make_functional(captured.graph_module)
    return TracedModel(model, weights, tokenizer, captured)


class TracedModel:
    """A model with its traced step.

    Attributes:
        model: the transformers model, decoder-only, in float32, on cpu.
        weights: the values of its parameters.
        tokenizer: the model's tokenizer; None if it has none.
        captured: its step without in-place writes.
    """

    def __init__(
        self,
        model: Any,
        weights: StreamedWeights,
        tokenizer: Any | None,
        captured: CapturedStep,
    ) -> None:
        self.model = model
        self.weights = weights
        self.tokenizer = tokenizer
        self.captured = captured

    @property
    def architecture(self) -> str:
        """The name of transformers' class."""
        return type(self.model).__name__

    @property
    def context_length(self) -> int | None:
        """The default context of the model's class in tokens; None if it sets no limit."""
        return context_length(self.model.config.get_text_config().to_dict())

    @property
    def vocabulary(self) -> int:
        """The vocabulary size; token ids are below it."""
        return self.captured.vocabulary

    def save_files(self, folder: Path) -> dict[str, bool]:
        """Writes config, generation config and tokenizer; returns the tokenizer's features."""
        tokenizer, place = self.tokenizer, folder / "tokenizer"
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        save_config(self.model.config, folder)
        self.model.generation_config.save_pretrained(folder)
        return {
            "has_tokenizer": tokenizer is not None,
            "has_fast_tokenizer": tokenizer is not None and agrees(tokenizer, place),
        }

    def kernel_step(
        self, context: int | None, precision: Precision, compression: Compression
    ) -> KernelStep:
        """Returns the step as a kernel program.

        Args:
            context: the model's context in tokens; None if it sets no limit.
            precision: storage type of its weights.
            compression: quantization options; with a calibration text, the traced step is modified.

        Raises:
            npu_compiler.errors.LoweringError: [not-row-wise] if it is not a kernel program.
            OptionError: [quantize-text], see npu_llm.capture.compression.
        """
        lowered = lower_step(self.captured, context)
        rounded = {}
        if precision.weights == "int4" and compression.text is not None:
            from npu_llm.models.lower_step import integers_by_text  # needs OpenVINO

            rounded = integers_by_text(
                self.model,
                self.captured,
                weights=self.weights,
                compression=compression,
                tokenizer=self.tokenizer,
            )

        def compute(packed: Path, advance: Advance) -> TorchReference:
            return compute_reference(
                self.model,
                self.weights,
                compressed=PackedParameters(lowered, packed),
                rounding=rounding_in(precision),
                context=context,
                on_progress=advance,
            )

        return KernelStep(lowered, self.weights, compute, rounded, self.captured.limits)

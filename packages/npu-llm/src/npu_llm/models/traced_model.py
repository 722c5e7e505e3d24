"""A model of transformers of which an entry is made: its step is traced."""

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
    """Loads and traces a model; raises what load_model, load_tokenizer and capture_step do.

    Args:
        source: the model's files.
        options: how it is to run.
        progress: where to report.
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
    """A model whose step was traced.

    Attributes:
        model: of transformers, decoder-only, in float32, on cpu.
        weights: the values of its parameters.
        tokenizer: the model's; None if there is none.
        captured: its step, which writes nothing in place.
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
        """How many tokens the model's class reads by default; None if it sets no limit."""
        return context_length(self.model.config.get_text_config().to_dict())

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self.captured.vocabulary

    def save_files(self, folder: Path) -> dict[str, bool]:
        """Writes config, generation config and tokenizer; returns what the latter's files do."""
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
            context: how many tokens the model was made for; None if nothing sets a limit.
            precision: how its weights are to be stored.
            compression: how weights of few bits are made; by a text, the captured step is changed.

        Raises:
            npu_compiler.errors.LoweringError: [not-row-wise] if it is no kernel program.
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

"""Transcriber: writes down what is said in a sound, with transformers' own pipeline."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import StoppingCriteria, StoppingCriteriaList, pipeline

from npu_llm.errors import OptionError
from npu_llm.speech.transcript import Passage, TranscriptOptions

if TYPE_CHECKING:
    from npu_llm.encoder_decoders.models import NPUModelForSpeechSeq2Seq

__all__ = ["Sound", "Transcriber", "Transcript"]

Sound = np.ndarray[tuple[int], np.dtype[np.float32]]

_WINDOW_S = 30  # what Whisper reads at once; longer sounds need its times


@dataclass(frozen=True)
class Transcript:
    """The text of a sound.

    Attributes:
        text: all of it.
        passages: its parts with their times; empty where none were requested.
        seconds: how long the sound is.
    """

    text: str
    passages: tuple[Passage, ...]
    seconds: float


class Transcriber:
    """A model of speech with what prepares its inputs and decodes its tokens.

    Attributes:
        model: the model.
        tokenizer: its tokenizer.
        rate: the samples per second that it takes.
        knows_times: whether it can tell when something was said.
    """

    def __init__(self, model: NPUModelForSpeechSeq2Seq, extractor: Any, tokenizer: Any) -> None:
        """Takes the parts.

        Args:
            model: the model.
            extractor: the feature extractor that came with it.
            tokenizer: the tokenizer that came with it.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.rate = int(extractor.sampling_rate)
        self.knows_times = hasattr(model.generation_config, "no_timestamps_token_id")
        self._recognize = pipeline(
            "automatic-speech-recognition",
            model=model,
            feature_extractor=extractor,
            tokenizer=tokenizer,
            device="cpu",
        )

    def check(self, options: TranscriptOptions) -> None:
        """Raises OptionError [speech-option] for what the model does not know."""
        named = {
            "timestamps": (options.times, "no_timestamps_token_id"),
            "language": (options.language, "lang_to_id"),
            "translate": (options.translates or None, "task_to_id"),
        }
        for name, (value, needed) in named.items():
            if value is not None and not hasattr(self.model.generation_config, needed):
                raise OptionError(
                    f"`{name}` must be omitted for a model without {needed} in its generation "
                    f"config, which {type(self.model).__name__} here is, got {value}. Omit it, or "
                    "take a multilingual Whisper.",
                    code="speech-option",
                )

    def run(
        self,
        sound: Sound,
        options: TranscriptOptions,
        *,
        more: Mapping[str, Any] | None = None,
        ends: Sequence[threading.Event] = (),
    ) -> Transcript:
        """Returns what is said.

        Args:
            sound: (samples,) float32 at `rate`.
            options: checked.
            more: further arguments of the model's generate.
            ends: events after one of which nobody waits for the transcript.

        Raises:
            InterruptedError: at the next token after one of `ends` was set.
            OptionError: [speech-option] for a language that the model does not know.
        """
        asked: dict[str, Any] = {"do_sample": options.temperature > 0, "num_beams": options.beams}
        if options.temperature > 0:
            asked["temperature"] = options.temperature
        if options.language is not None:
            asked["language"] = options.language
        if options.translates:
            asked["task"] = "translate"
        if ends:
            asked["stopping_criteria"] = StoppingCriteriaList([_Interruption(ends)])
        wanted: dict[str, Any] = {}
        if self.knows_times and (options.times or len(sound) > _WINDOW_S * self.rate):
            wanted["return_timestamps"] = "word" if options.times == "word" else True
        given = {"raw": sound, "sampling_rate": self.rate}
        try:
            found = self._recognize(given, generate_kwargs={**asked, **(more or {})}, **wanted)
        except ValueError as failure:
            if "language" not in str(failure) or options.language is None:
                raise
            raise OptionError(
                f"`language` must be one that the model knows, got {options.language[:40]!r}. Pass "
                "a code such as en, or a name such as german.",
                code="speech-option",
            ) from failure
        seconds = len(sound) / self.rate
        chunks = found.get("chunks", []) if options.times is not None else []
        return Transcript(found["text"], tuple(_passages(chunks, seconds)), seconds)


class _Interruption(StoppingCriteria):  # type: ignore[misc]
    """Interrupts generate: a long sound is read in parts, and stopping would only end one."""

    def __init__(self, ends: Sequence[threading.Event]) -> None:
        self._ends = ends

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if any(event.is_set() for event in self._ends):
            raise InterruptedError("nobody waits for the transcript any more")
        return torch.zeros(len(input_ids), dtype=torch.bool)


def _passages(chunks: list[dict[str, Any]], length: float) -> list[Passage]:
    passages = []
    for chunk in chunks:
        start, end = chunk["timestamp"]
        # The last one of a sound that was cut off has no end; and the model reads 30 s, with
        # silence after the sound, where it may hear something.
        start = min(float(start or 0.0), length)
        end = length if end is None else min(float(end), length)
        passages.append(Passage(chunk["text"], start, end))
    return passages

"""Transcriber: transcribes audio with transformers' pipeline."""

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

_WINDOW_S = 30  # Whisper's input length; longer audio needs its timestamps


@dataclass(frozen=True)
class Transcript:
    """The transcript of an audio clip.

    Attributes:
        text: the whole text.
        passages: its parts with timestamps; empty if none were requested.
        seconds: duration of the audio.
    """

    text: str
    passages: tuple[Passage, ...]
    seconds: float


class Transcriber:
    """A speech model with its feature extractor and tokenizer.

    Attributes:
        model: the model.
        tokenizer: its tokenizer.
        rate: the model's sample rate in Hz.
        knows_times: whether it can produce timestamps.
    """

    def __init__(self, model: NPUModelForSpeechSeq2Seq, extractor: Any, tokenizer: Any) -> None:
        """Stores the parts.

        Args:
            model: the model.
            extractor: the model's feature extractor.
            tokenizer: the model's tokenizer.
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
        """Raises OptionError [speech-option] for options that the model does not support."""
        named = {
            "timestamps": (options.times, "no_timestamps_token_id"),
            "language": (options.language, "lang_to_id"),
            "translate": (options.translates or None, "task_to_id"),
        }
        for name, (value, needed) in named.items():
            if value is not None and not hasattr(self.model.generation_config, needed):
                raise OptionError(
                    f"`{name}` must be omitted for {type(self.model).__name__} without {needed} "
                    f"in its generation config, got {value}. Omit it, or take a multilingual "
                    "Whisper.",
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
        """Transcribes audio.

        Args:
            sound: (samples,) float32 at `rate`.
            options: validated options.
            more: further arguments of the model's generate.
            ends: events that cancel the transcription.

        Raises:
            InterruptedError: at the next token after one of `ends` was set.
            OptionError: [speech-option] for a language that the model does not support.
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
                f"`language` must be one that the model supports, got {options.language[:40]!r}. "
                "Pass a code such as en, or a name such as german.",
                code="speech-option",
            ) from failure
        seconds = len(sound) / self.rate
        chunks = found.get("chunks", []) if options.times is not None else []
        return Transcript(found["text"], tuple(_passages(chunks, seconds)), seconds)


class _Interruption(StoppingCriteria):  # type: ignore[misc]
    """Interrupts generate: audio is read in parts, stopping criteria would end only one part."""

    def __init__(self, ends: Sequence[threading.Event]) -> None:
        self._ends = ends

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if any(event.is_set() for event in self._ends):
            raise InterruptedError("the transcription was cancelled")
        return torch.zeros(len(input_ids), dtype=torch.bool)


def _passages(chunks: list[dict[str, Any]], length: float) -> list[Passage]:
    passages = []
    for chunk in chunks:
        start, end = chunk["timestamp"]
        # The last passage of truncated audio has no end. The model pads audio to 30 s with silence,
        # in which it may hallucinate text.
        start = min(float(start or 0.0), length)
        end = length if end is None else min(float(end), length)
        passages.append(Passage(chunk["text"], start, end))
    return passages

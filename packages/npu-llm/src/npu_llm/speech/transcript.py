"""Transcripts: options, passages with times, and their output as text, subtitles or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["FORMATS", "Format", "Passage", "Times", "TranscriptOptions", "write_transcript"]

Times = Literal["word", "segment"]
Format = Literal["txt", "srt", "vtt", "json"]
FORMATS: tuple[Format, ...] = ("txt", "srt", "vtt", "json")


@dataclass(frozen=True, kw_only=True)
class TranscriptOptions:
    """Options of a transcription.

    Attributes:
        language: a code such as "en" or a name such as "german"; None to detect it.
        translates: whether to translate into English.
        times: unit of timestamps; None for only text.
        beams: beam size.
        temperature: 0.0 for greedy search; sampled above.
    """

    language: str | None = None
    translates: bool = False
    times: Times | None = None
    beams: int = 1
    temperature: float = 0.0


@dataclass(frozen=True)
class Passage:
    """A segment or a word.

    Attributes:
        text: the spoken text.
        start, end: times in seconds.
    """

    text: str
    start: float
    end: float


def write_transcript(text: str, passages: Sequence[Passage], kind: Format) -> str:
    """Formats a transcript, without a final line break.

    Args:
        text: the whole text.
        passages: its parts in order; needed for subtitles.
        kind: the format. "txt" has one line per passage, or a single line without passages.
    """
    if kind == "json":
        parts = [
            {"start": each.start, "end": each.end, "text": each.text.strip()} for each in passages
        ]
        return json.dumps({"text": text.strip(), "passages": parts}, ensure_ascii=False, indent=1)
    if kind == "txt":
        return "\n".join(each.text.strip() for each in passages) or text.strip()
    mark = "," if kind == "srt" else "."
    blocks = []
    for number, each in enumerate(passages, 1):
        times = f"{_clock(each.start, mark)} --> {_clock(each.end, mark)}"
        head = f"{number}\n" if kind == "srt" else ""
        # A blank line would end the passage, and an arrow would be parsed as times.
        said = " ".join(each.text.split()).replace("-->", "->")
        blocks.append(f"{head}{times}\n{said}")
    return ("WEBVTT\n\n" if kind == "vtt" else "") + "\n\n".join(blocks)


def _clock(seconds: float, mark: str) -> str:
    thousandths = round(seconds * 1000)
    whole, rest = divmod(thousandths, 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{rest:03}"

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
    """Options of a transcript.

    Attributes:
        language: a code such as "en" or a name such as "german"; None to find it out.
        translates: whether into English.
        times: what has times; None for text alone.
        beams: how many are searched; more search longer.
        temperature: 0.0 for the most likely tokens; above, they are drawn.
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
        text: what was said.
        start, end: when, in seconds.
    """

    text: str
    start: float
    end: float


def write_transcript(text: str, passages: Sequence[Passage], kind: Format) -> str:
    """Returns a transcript in a format, without a line break at the end.

    Args:
        text: all of it.
        passages: its parts in order; needed for subtitles.
        kind: the format. "txt" has a line for each passage, or all in one line without any.
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
        # A blank line would end the passage, and an arrow would be read as times.
        said = " ".join(each.text.split()).replace("-->", "->")
        blocks.append(f"{head}{times}\n{said}")
    return ("WEBVTT\n\n" if kind == "vtt" else "") + "\n\n".join(blocks)


def _clock(seconds: float, mark: str) -> str:
    thousandths = round(seconds * 1000)
    whole, rest = divmod(thousandths, 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{rest:03}"

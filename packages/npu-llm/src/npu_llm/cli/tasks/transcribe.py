"""The command `npu-llm transcribe`: speech to text for a WAV file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_llm.cli.arguments import check_model, positive
from npu_llm.cli.tasks.starting import add_task_model, start_transcriber
from npu_llm.cli.terminal import Display
from npu_llm.speech.transcript import FORMATS, TranscriptOptions, write_transcript

__all__ = ["live_text", "main"]

_RATE = 16_000


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and writes the transcript; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm transcribe",
        description="Transcribes speech in a WAV file (speech to text, ASR). Only the transcript "
        "goes to standard output.",
        check=_check,
    )
    add_task_model(parser)
    parser.add_argument(
        "--language", metavar="LANG", help="language, such as en or german (default: detected)"
    )
    parser.add_argument("--translate", action="store_true", help="translate into English")
    parser.add_argument("--timestamps", choices=("word", "segment"), help="add times")
    parser.add_argument(
        "--format", choices=FORMATS, default="txt", help="output format (default: txt)"
    )
    parser.add_argument(
        "--beams", metavar="N", type=positive, default=1, help="beams of the search (default: 1)"
    )
    add_json(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the WAV file")
    options = parser.parse_args(arguments)
    from npu_llm.speech.wave_file import read_wave

    times = options.timestamps
    if times is None and options.format in ("srt", "vtt"):
        times = "segment"
    display = Display()
    transcriber = start_transcriber(options, display)
    sound = read_wave(options.file, rate=transcriber.rate)
    wanted = TranscriptOptions(
        language=options.language,
        translates=options.translate,
        times=times,
        beams=options.beams,
    )
    transcriber.check(wanted)
    started = time.perf_counter()
    monitors = transcriber.knows_times
    is_live = wanted.beams == 1  # beam search has no words until its end
    tokenizer = transcriber.tokenizer
    with live_text(display, tokenizer, monitors=monitors, streams=is_live) as live:
        found = transcriber.run(sound, wanted, more=live)
    seconds = time.perf_counter() - started
    give_answer(
        options.json,
        json.loads(write_transcript(found.text, found.passages, "json")),
        lambda: print(write_transcript(found.text, found.passages, options.format), flush=True),
    )
    display.table(
        {
            "device": transcriber.model.report.device,
            "precision": transcriber.model.precision.name,
            "program": str(transcriber.model.verification),
            "sound": f"{found.seconds:.1f} s",
            "transcribed in": f"{seconds:.2f} s",
            "speed": f"{found.seconds / seconds:.1f} times real time",
        }
    )
    return 0


def _check(options: argparse.Namespace) -> None:
    if not options.file.is_file():
        from npu_llm.speech.wave_file import read_wave  # late: imports numpy

        read_wave(options.file, rate=_RATE)  # raises
    check_model(options)


_WIDTH = 60  # characters of the latest words


@contextmanager
def live_text(
    display: Display, tokenizer: Any, *, monitors: bool, streams: bool
) -> Iterator[dict[str, Any]]:
    """Shows a progress bar and the latest words on a terminal; otherwise nothing.

    Args:
        display: the display.
        tokenizer: decodes tokens.
        monitors: whether the model's generate reports the number of frames read.
        streams: whether it reports words.

    Yields:
        Arguments of the model's generate.
    """
    if not display.console.is_terminal:
        yield {}
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.percentage:>3.0f} %"), BarColumn(bar_width=20), TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=display.console, transient=True) as bar:
        task = bar.add_task("listening", total=1.0)

        def show(words: str) -> None:
            bar.update(task, description=" ".join(words.split())[-_WIDTH:])

        def monitor(progress: Any) -> None:
            read, total = progress[progress[:, 1].argmax()].tolist()
            bar.update(task, completed=read / max(total, 1))

        reports: dict[str, Any] = {"monitor_progress": monitor} if monitors else {}
        yield reports | ({"streamer": _Words(tokenizer, show)} if streams else {})


class _Words:
    """A streamer that collects the tokens of the current segment."""

    def __init__(self, tokenizer: Any, show: Any) -> None:
        self._tokenizer = tokenizer
        self._show = show
        self._tokens: list[int] = []

    def put(self, value: Any) -> None:
        """Adds tokens."""
        self._tokens += value.reshape(-1).tolist()
        self._show(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def end(self) -> None:
        """Ends a segment."""
        self._tokens = []

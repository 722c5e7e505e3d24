"""`npu-llm transcribe`: writes down what is said in a WAV file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from npu_command.answers import add_json, give_answer
from npu_command.help.command_parser import CommandParser
from npu_llm.cli.arguments import check_model, positive
from npu_llm.cli.display import Display
from npu_llm.cli.tasks.starting import add_task_model, start_transcriber
from npu_llm.speech.transcript import FORMATS, write_transcript

__all__ = ["main", "transcribe"]

_RATE = 16_000


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs `transcribe`."""
    parser = CommandParser(
        prog="npu-llm transcribe",
        description="Writes down what is said in a WAV file. Only that goes to standard output.",
        check=_check,
    )
    add_task_model(parser)
    parser.add_argument(
        "--language", metavar="LANG", help="such as en or german (default: found out)"
    )
    parser.add_argument("--translate", action="store_true", help="into English")
    parser.add_argument("--timestamps", choices=("word", "segment"), help="with times")
    parser.add_argument("--format", choices=FORMATS, default="txt", help="default: txt")
    parser.add_argument(
        "--beams", metavar="N", type=positive, default=1, help="more search longer (default: 1)"
    )
    add_json(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the WAV file")
    return transcribe(parser.parse_args(arguments))


def _check(options: argparse.Namespace) -> None:
    if not options.file.is_file():
        from npu_llm.speech.wave_file import read_wave  # numpy: help needs none

        read_wave(options.file, rate=_RATE)  # the reason
    check_model(options)


def transcribe(options: argparse.Namespace) -> int:
    """Writes the transcript to standard output, and everything else to standard error.

    Returns:
        The exit code.

    Raises:
        NpuError: if there can be no transcript.
    """
    from npu_llm.speech.wave_file import read_wave

    times = options.timestamps
    if times is None and options.format in ("srt", "vtt"):
        times = "segment"
    # Heavy: a mistyped command should not wait for these.
    from npu_llm.cli.session import be_quiet

    be_quiet()
    from npu_llm.cli.tasks.live_text import live_text
    from npu_llm.speech.wishes import Wishes

    display = Display()
    transcriber = start_transcriber(options, display)
    sound = read_wave(options.file, rate=transcriber.rate)
    wishes = Wishes(
        language=options.language,
        translates=options.translate,
        times=times,
        beams=options.beams,
    )
    transcriber.check(wishes)
    started = time.perf_counter()
    monitors = transcriber.knows_times
    is_live = wishes.beams == 1  # beams have no words until they end
    tokenizer = transcriber.tokenizer
    with live_text(display, tokenizer, monitors=monitors, streams=is_live) as live:
        found = transcriber.run(sound, wishes, more=live)
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
            "speed": f"{found.seconds / seconds:.1f} times as fast as it was said",
        }
    )
    return 0

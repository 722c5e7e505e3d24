"""`npu-llm transcribe`: writes down what is said in a WAV file."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_llm.cli.arguments import positive
from npu_llm.cli.display import Display
from npu_llm.cli.tasks.starting import add_task_model, load_beside, start_task
from npu_llm.cli.tasks.transcript import FORMATS, Passage, write_transcript
from npu_llm.errors import OptionError

__all__ = ["main", "transcribe"]

_RATE = 16_000


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs `transcribe`."""
    parser = argparse.ArgumentParser(
        prog="npu-llm transcribe",
        description="Writes down what is said in a WAV file. Only that goes to standard output.",
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
    parser.add_argument("file", metavar="FILE", type=Path, help="the WAV file")
    return transcribe(parser.parse_args(arguments))


def transcribe(options: argparse.Namespace) -> int:
    """Writes the transcript to standard output, and everything else to standard error.

    Returns:
        The exit code.

    Raises:
        NpuError: if there can be no transcript.
    """
    from npu_llm.cli.tasks.wave_file import read_wave

    times = options.timestamps
    if times is None and options.format in ("srt", "vtt"):
        times = "segment"
    if not options.file.is_file():
        read_wave(options.file, rate=_RATE)  # the reason, before a model is loaded
    # Heavy: a mistyped command should not wait for these.
    from npu_llm.cli.session import be_quiet

    be_quiet()
    from transformers import AutoFeatureExtractor, AutoTokenizer

    from npu_llm.encoder_decoders.models import NPUModelForSpeechSeq2Seq

    display = Display()
    model = start_task(NPUModelForSpeechSeq2Seq, options, display)
    extractor = load_beside(AutoFeatureExtractor, options.model, "a feature extractor")
    tokenizer = load_beside(AutoTokenizer, options.model, "a tokenizer")
    sound = read_wave(options.file, rate=int(extractor.sampling_rate))
    asked = _asked(model, options, times)
    started = time.perf_counter()
    found = _run(model, extractor, tokenizer, sound, display=display, times=times, asked=asked)
    seconds = time.perf_counter() - started
    length = len(sound) / extractor.sampling_rate
    sys.stdout.write(write_transcript(*_passages(found, length), options.format) + "\n")
    sys.stdout.flush()
    display.table(
        {
            "device": model.report.device,
            "precision": model.precision.name,
            "program": str(model.verification),
            "sound": f"{length:.1f} s",
            "transcribed in": f"{seconds:.2f} s",
            "speed": f"{length / seconds:.1f} times as fast as it was said",
        }
    )
    return 0


def _asked(model: Any, options: argparse.Namespace, times: str | None) -> dict[str, Any]:
    """Returns arguments of generate, if the model knows them."""
    config = model.generation_config
    names = {"--timestamps": times, "--language": options.language}
    names["--translate"] = "given" if options.translate else None
    needs = {
        "--timestamps": "no_timestamps_token_id",
        "--language": "lang_to_id",
        "--translate": "task_to_id",
    }
    for name, value in names.items():
        if value is not None and not hasattr(config, needs[name]):
            raise OptionError(
                f"{name}: must be omitted for a model without {needs[name]} in its generation "
                f"config, which {type(model).__name__} here is; got {value}. Omit it, or take a "
                "multilingual Whisper.",
                code="speech-option",
            )
    asked: dict[str, Any] = {"num_beams": options.beams}
    if options.language is not None:
        asked["language"] = options.language
    if options.translate:
        asked["task"] = "translate"
    return asked


def _run(
    model: Any,
    extractor: Any,
    tokenizer: Any,
    sound: Any,
    *,
    display: Display,
    times: str | None,
    asked: dict[str, Any],
) -> dict[str, Any]:
    """Runs transformers' own pipeline, and shows how far it is."""
    from transformers import pipeline

    from npu_llm.cli.tasks.live_text import live_text

    recognize = pipeline(
        "automatic-speech-recognition",
        model=model,
        feature_extractor=extractor,
        tokenizer=tokenizer,
        device="cpu",
    )
    wanted: dict[str, Any] = {}
    knows_times = hasattr(model.generation_config, "no_timestamps_token_id")
    is_long = len(sound) > 30 * extractor.sampling_rate
    if knows_times and (times is not None or is_long):
        wanted["return_timestamps"] = "word" if times == "word" else True
    is_live = asked["num_beams"] == 1  # beams have no words until they end
    with live_text(display, tokenizer, monitors=knows_times, streams=is_live) as live:
        try:
            found = recognize(
                {"raw": sound, "sampling_rate": extractor.sampling_rate},
                generate_kwargs={**asked, **live},
                **wanted,
            )
        except ValueError as failure:
            if "language" not in str(failure) or "language" not in asked:
                raise
            raise OptionError(
                f"--language: must be one that the model knows; got {asked['language']}. Pass a "
                "code such as en, or a name such as german.",
                code="speech-option",
            ) from failure
    result: dict[str, Any] = found
    return result if times is not None else {"text": result["text"]}


def _passages(found: dict[str, Any], length: float) -> tuple[str, list[Passage]]:
    passages = []
    for chunk in found.get("chunks", []):
        start, end = chunk["timestamp"]
        # The last one of a sound that was cut off has no end; and the model reads 30 s, with
        # silence after the sound, where it may hear something.
        start = min(float(start or 0.0), length)
        end = length if end is None else min(float(end), length)
        passages.append(Passage(chunk["text"], start, end))
    return found["text"], passages

"""Starts a model of a task for a command, with the files that prepare its inputs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_command.command_parser import offer
from npu_command.output import import_notice
from npu_llm.checkpoint.processors import load_beside
from npu_llm.choices import DEFAULT_PRECISION, FLOATS_AND_INTEGERS
from npu_llm.cli.arguments import add_files, add_verify, file_options
from npu_llm.cli.terminal import Display

if TYPE_CHECKING:
    from npu_llm.speech.transcriber import Transcriber

__all__ = ["add_task_model", "start_task", "start_transcriber"]


def add_task_model(parser: argparse.ArgumentParser, *, default: str = DEFAULT_PRECISION) -> None:
    """Adds --model, --dtype, whose `default` the class has, --verify, --cache-dir, add_files."""
    parser.add_argument(
        "--model",
        metavar="PATH",
        required=True,
        help="checkpoint folder, exported folder, or name on the hub",
    )
    chosen = parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help=f"one of {', '.join(FLOATS_AND_INTEGERS)} (default: {default}, or that of an "
        "exported folder)",
    )
    offer(chosen, FLOATS_AND_INTEGERS)
    add_verify(parser)
    parser.add_argument(
        "--cache-dir", metavar="DIR", type=Path, help="where compiled models are kept"
    )
    add_files(parser)


def start_task(kind: str, options: argparse.Namespace, display: Display) -> Any:
    """Starts the model that the options name.

    Args:
        kind: the name of its class, such as NPUModelForSpeechSeq2Seq.
        options: of add_task_model.
        display: where to show device and progress.

    Raises:
        NpuError: if it cannot start.
    """
    with import_notice():  # late imports of torch and transformers: help needs neither
        import npu_llm
        from npu_llm.cli.session import be_quiet
        from npu_runtime import device_info

        be_quiet()
        device = device_info()
        loader = getattr(npu_llm, kind)
    display.line(f"device: {device.device}, {device.full_name} ({device.reason})")
    with display.progress() as listener:
        model = loader.from_pretrained(
            options.model,
            dtype=options.dtype,
            verify=options.verify,
            cache_dir=options.cache_dir,
            on_progress=listener,
            **file_options(options),
        )
    cached = model.report.from_cache
    display.line(
        "started from the compile cache"
        if cached
        else "compiled and kept in the compile cache: the next start is faster"
    )
    if model.verification.status != "right":
        display.line(f"program: {model.verification}")
    return model


def start_transcriber(options: argparse.Namespace, display: Display) -> Transcriber:
    """Starts a model of speech, with what prepares its inputs; takes and raises as start_task."""
    model = start_task("NPUModelForSpeechSeq2Seq", options, display)
    from transformers import AutoFeatureExtractor, AutoTokenizer

    from npu_llm.speech.transcriber import Transcriber

    trust = {"trust_remote_code": options.trust_remote_code}
    return Transcriber(
        model,
        load_beside(AutoFeatureExtractor, options.model, "a feature extractor", **trust),
        load_beside(AutoTokenizer, options.model, "a tokenizer", **trust),
    )

"""Starts a model of a task for a command, with the processors of its inputs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from npu_command.command_parser import offer
from npu_command.output import import_notice
from npu_llm.checkpoint.processors import load_beside
from npu_llm.choices import DEFAULT_PRECISION, FLOATS_AND_INTEGERS
from npu_llm.cli.arguments import (
    add_cache_dir,
    add_files,
    add_model_option,
    add_verify,
    file_options,
)
from npu_llm.cli.terminal import Display

if TYPE_CHECKING:
    from npu_llm.speech.transcriber import Transcriber

__all__ = ["add_task_model", "start_task", "start_transcriber"]


def add_task_model(parser: argparse.ArgumentParser, *, default: str = DEFAULT_PRECISION) -> None:
    """Adds --model, --dtype with the class's `default`, --verify, --cache-dir and add_files."""
    add_model_option(
        parser, "checkpoint folder, exported folder, or name on the hub", is_required=True
    )
    chosen = parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help=f"{', '.join(FLOATS_AND_INTEGERS)} (default: {default}, or the exported folder's)",
    )
    offer(chosen, FLOATS_AND_INTEGERS)
    add_verify(parser)
    add_cache_dir(parser)
    add_files(parser)


def start_task(kind: str, options: argparse.Namespace, display: Display) -> Any:
    """Starts the model in the options.

    Args:
        kind: the name of its class, such as NPUModelForSpeechSeq2Seq.
        options: the options of add_task_model.
        display: shows device and progress.

    Raises:
        NpuError: if the model cannot start.
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
    """Starts a speech model with its processors; arguments and errors as for start_task."""
    model = start_task("NPUModelForSpeechSeq2Seq", options, display)
    from transformers import AutoFeatureExtractor, AutoTokenizer

    from npu_llm.speech.transcriber import Transcriber

    trust = {"trust_remote_code": options.trust_remote_code}
    return Transcriber(
        model,
        load_beside(AutoFeatureExtractor, options.model, "a feature extractor", **trust),
        load_beside(AutoTokenizer, options.model, "a tokenizer", **trust),
    )

"""`npu-llm export`: writes a model to a folder that starts without building."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_llm.checkpoint.source import DEFAULT_WEIGHTS, find_installed_weights
from npu_llm.choices import DEFAULT_PRECISION, PRECISION_NAMES
from npu_llm.cli.arguments import add_verify

__all__ = ["add_export", "main", "write_folder"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, writes the folder and prints its path."""
    parser = argparse.ArgumentParser(
        prog="npu-llm export",
        description="Writes a model in a precision, compiled for this device, to a folder for "
        "--model: it starts without transformers' model code.",
    )
    add_export(parser)
    parser.add_argument(
        "--dtype",
        "--weights",
        metavar="DTYPE",
        default=DEFAULT_PRECISION,
        help=f"one of {', '.join(PRECISION_NAMES)} (default: {DEFAULT_PRECISION})",
    )
    options = parser.parse_args(arguments)
    return write_folder(options)


def add_export(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, -o, --pipeline and --verify: what is written, and where."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="GGUF file, checkpoint folder, or name on the hub; by default the weights of the "
        f"installed {DEFAULT_WEIGHTS}",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write"
    )
    parser.add_argument(
        "--pipeline",
        metavar="NAME",
        help="kernels, dynamic, or static for programs of fixed sizes (default: what suits device "
        "and model)",
    )
    add_verify(parser)


def write_folder(options: argparse.Namespace, **how: Any) -> int:
    """Exports as the options say, with progress on standard error.

    Args:
        options: model, output, dtype, pipeline, verify.
        how: further arguments of npu_llm.export.

    Returns:
        The exit code.

    Raises:
        NpuError: as npu_llm.export does.
    """
    from npu_llm.cli.display import Display
    from npu_llm.cli.session import be_quiet
    from npu_llm.entries.exported import export

    display = Display()
    model = find_installed_weights().path if options.model is None else options.model
    with display.progress() as listener:
        be_quiet()
        folder = export(
            model,
            options.output,
            dtype=options.dtype,
            pipeline=options.pipeline,
            verify=options.verify,
            on_progress=listener,
            **how,
        )
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    display.line(f"{size / 1e6:,.0f} MB in {options.dtype}; start it with --model {folder}")
    print(folder)
    return 0

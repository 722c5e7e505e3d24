"""The command `npu-llm quantize`: writes a quantized model to a folder like that of `export`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_llm.choices import GROUP_SIZES, check_group_size
from npu_llm.cli.writing.export import add_export, check_export, write_folder

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, writes the folder and prints its path."""
    parser = CommandParser(
        prog="npu-llm quantize",
        description="Quantizes a model's weights to 8 or 4 bits and writes it to a folder for "
        "--model.",
        check=_check,
    )
    add_export(parser)
    parser.add_argument(
        "--dtype",
        choices=("int8", "int4"),
        default="int4",
        help="precision of the weights (default: int4)",
    )
    parser.add_argument(
        "--group-size",
        metavar="N",
        type=int,
        help=f"int4: number of weights that share a scale, one of "
        f"{', '.join(map(str, GROUP_SIZES))} (default: 64; in the static pipeline a row, which is "
        "fastest on NPUs); smaller groups are more exact and larger in memory",
    )
    parser.add_argument(
        "--symmetric",
        action="store_true",
        help="quantize without zero points: slightly smaller, slightly less exact",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        type=Path,
        help="int4: calibration text, similar to the model's later input and output; GPTQ rounds "
        "the weights so that results on it change least, which takes minutes. For an encoder or "
        "classifier: texts, one per line, or paths of images or WAV files; with int8, they "
        "calibrate int8 activations as well",
    )
    options = parser.parse_args(arguments)
    return write_folder(
        options,
        group_size=options.group_size,
        symmetric=options.symmetric,
        data=options.data,
    )


def _check(options: argparse.Namespace) -> None:
    check_group_size(options.group_size)
    check_export(options)

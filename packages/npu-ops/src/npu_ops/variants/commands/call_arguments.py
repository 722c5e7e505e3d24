"""The command line that `npu-ops explain` and `npu-ops tune` share: one call, written as words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from npu_command.answers import add_json
from npu_command.help.command_parser import CommandParser

__all__ = ["read_arguments"]


def read_arguments(description: str, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Reads an op, its arguments, and how to answer."""
    parser = CommandParser(prog=prog, description=description)
    parser.add_argument("op", help="for example aten.mm")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="tensors like 512x512xf32 (one stands for all), others like stride=[1,1]",
    )
    parser.add_argument("--device", type=int, default=0, metavar="N", help="index of the device")
    add_json(parser)
    return parser.parse_args(arguments)

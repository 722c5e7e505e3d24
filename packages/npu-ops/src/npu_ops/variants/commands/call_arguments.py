"""Arguments shared by `npu-ops explain` and `npu-ops tune`: the description of a call."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from npu_command.command_parser import CommandParser
from npu_command.output import add_json

__all__ = ["read_arguments"]


def read_arguments(
    description: str, prog: str, arguments: Sequence[str], *, may_list: bool = False
) -> argparse.Namespace:
    """Parses an op, its arguments, and output options.

    Args:
        description: description of the command.
        prog: name of the command.
        arguments: the command line.
        may_list: whether the op may be omitted, or replaced by `--list`.
    """
    parser = CommandParser(prog=prog, description=description)
    parser.add_argument("op", nargs="?" if may_list else None, help="for example aten.mm")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="tensors like 512x512xf32 (one for all arguments), others like stride=[1,1]",
    )
    parser.add_argument("--device", type=int, default=0, metavar="N", help="index of the device")
    if may_list:
        parser.add_argument("--list", action="store_true", help="list the records")
    add_json(parser)
    options = parser.parse_args(arguments)
    if may_list and options.list and options.op is not None:
        parser.error(f"--list must be the only argument, got {options.op} as well.")
    return options

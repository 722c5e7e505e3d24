"""``npu-ops new``: writes the project of a wheel with a custom op."""

from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_ops.scaffold.op_name import check_name

__all__ = ["main"]

_NEXT = """\
wrote {count} files to {place}

build and install it:                  python -m pip install --no-build-isolation {place}
test it, eagerly and torch.compile'd:  python -m pytest {place}/tests
time it:                               python {place}/benchmarks/time_{name}.py

The op multiplies by a number so far. Its arithmetic is in csrc/kernel.h, its schema in
csrc/{name}.cpp; README.md lists what else follows them.
"""


def main(arguments: Sequence[str]) -> int:
    """Runs the subcommand; returns its exit code."""
    parser = CommandParser(
        prog="npu-ops new",
        description="Write a wheel with a custom operator: kernel, autograd, converter, "
        "tests and benchmark, ready to be built.",
        check=lambda given: check_name(given.name),
    )
    parser.add_argument("name", help="of the op and of the Python package, such as my_op")
    parser.add_argument(
        "--directory", type=Path, help="to write into; must be new or empty (default: ./NAME)"
    )
    options = parser.parse_args(arguments)
    from npu_ops.scaffold.project import write_project  # late: help does not need torch

    place, files = write_project(options.name, options.directory)
    shown = place if place.is_absolute() else f"./{place}"  # not a package's name
    print(_NEXT.format(count=len(files), place=shown, name=options.name), end="")
    return 0

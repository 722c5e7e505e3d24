"""`npu-compiler export FILE`: writes a saved program as a folder, with blobs for NPUs."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer, is_quiet

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Writes the folder and prints its path."""

    def check(given: argparse.Namespace) -> None:
        from npu_compiler.target_compiler.targets import find_target

        for name in given.target:
            find_target(name, graphs=None)

    parser = CommandParser(
        prog="npu-compiler export",
        description="Export a program of torch.export.save to a folder for npu_compiler.load, with "
        "the sizes of its example inputs, and compile it ahead of time for NPUs.",
        check=check,
    )
    parser.add_argument("path", type=Path, help="file of torch.export.save")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="output folder"
    )
    parser.add_argument("--dtype", help="precision, as for npu_compiler.export")
    parser.add_argument(
        "--target", action="append", default=[], metavar="NPU",
        help="NPU such as lunar-lake or 5010, repeatable; `npu-compiler target list` lists them",
    )  # fmt: skip
    parser.add_argument(
        "--skip-refused", action="store_true",
        help="omit blobs of targets whose compilers refuse the program",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    add_json(parser)
    given = parser.parse_args(arguments)
    return _export(given)


def _export(given: argparse.Namespace) -> int:
    # dynamo and OpenVINO: help needs neither.
    from npu_compiler.exported.capture import read_saved_program
    from npu_compiler.exported.manifest import read_manifest
    from npu_compiler.exported.write import export

    program = read_saved_program(given.path)
    args, kwargs = program.example_inputs
    folder = export(
        program.module(),
        args,
        given.output,
        kwargs=kwargs,
        overwrite=given.overwrite,
        targets=given.target,
        skip_refused=given.skip_refused,
        on_progress=None if is_quiet() else _tell,
        **({} if given.dtype is None else {"dtype": given.dtype}),
    )
    blobs = read_manifest(folder).blobs
    for blob in blobs:
        if not is_quiet():
            print(blob, file=sys.stderr)
    document = {"folder": folder, "blobs": [dataclasses.asdict(blob) for blob in blobs]}
    give_answer(given.json, document, lambda: print(folder))
    return 0


def _tell(_: float, doing: str) -> None:
    print(doing, file=sys.stderr)

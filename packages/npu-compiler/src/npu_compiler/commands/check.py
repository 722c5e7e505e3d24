"""`npu-compiler check FOLDER`: says whether an exported model suits an NPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from npu_command.answers import add_json, give_answer
from npu_command.help.command_parser import CommandParser

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints the findings; returns 1 when one is a refusal."""
    parser = CommandParser(
        prog="npu-compiler check",
        description="Say whether an exported model is what an NPU accepts; no NPU is needed.",
    )
    parser.add_argument("folder", type=Path, help="that npu_compiler.export made")
    parser.add_argument(
        "--generation", default="4000", help="3720: Meteor Lake; 4000: Lunar Lake (default)"
    )
    parser.add_argument(
        "--half", action="store_true",
        help="compute it in half precision, call by call; takes a file of torch.export.save",
    )  # fmt: skip
    add_json(parser)
    given = parser.parse_args(arguments)
    if given.half:
        from npu_compiler.half_precision import check_half_file  # dynamo: help needs none

        found = check_half_file(given.folder)
        give_answer(given.json, json.loads(found.to_json()), lambda: print(found))
        return 0 if found.is_harmless and not found.keep_float32 else 1
    from npu_compiler.readiness import check_folder  # OpenVINO: help needs none

    readiness = check_folder(given.folder, generation=given.generation)
    give_answer(given.json, json.loads(readiness.to_json()), lambda: print(readiness))
    return 0 if readiness.is_ready else 1

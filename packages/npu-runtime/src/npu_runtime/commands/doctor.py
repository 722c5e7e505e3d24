"""`npu-runtime doctor`: what keeps the NPU from serving, and the fix."""

import json
from collections.abc import Sequence

from npu_command.help.command_parser import CommandParser
from npu_command.text_table import terminal_width

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Examines the machine; returns 0 where nothing keeps an NPU from serving, else 1."""
    parser = CommandParser(
        prog="npu-runtime doctor", description="Say what keeps the NPU from serving, and the fix."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--require-npu",
        action="store_true",
        help="end with exit code 1 on a machine without an NPU too, for scripts that need one",
    )
    options = parser.parse_args(arguments)
    from npu_runtime import doctor  # torch: help needs none

    machine = doctor.read_machine()
    checks = doctor.run_checks(machine)
    if options.json:
        print(json.dumps(doctor.as_json(machine, checks), indent=2))
    else:
        print(doctor.as_table(machine, checks, width=min(100, terminal_width() or 100)))
    return doctor.exit_code(machine, checks, require_npu=options.require_npu)

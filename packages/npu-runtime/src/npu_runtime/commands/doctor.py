"""`npu-runtime doctor`: reports why the NPU does not work, and the fix."""

from collections.abc import Sequence

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer, terminal_width

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Checks the machine; returns 0 if the NPU can work, else 1."""
    parser = CommandParser(
        prog="npu-runtime doctor", description="Find why the NPU is not used, and the fix."
    )
    add_json(parser)
    parser.add_argument(
        "--require-npu",
        action="store_true",
        help="end with exit code 1 on a machine without an NPU too, for scripts that need one",
    )
    options = parser.parse_args(arguments)
    from npu_runtime import doctor  # late: --help does not need torch

    machine = doctor.read_machine()
    checks = doctor.run_checks(machine)
    width = min(100, terminal_width() or 100)
    give_answer(
        options.json,
        doctor.as_json(machine, checks),
        lambda: print(doctor.as_table(machine, checks, width=width)),
    )
    return doctor.exit_code(machine, checks, require_npu=options.require_npu)

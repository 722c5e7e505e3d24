"""The command ``npu-ops``: hands each subcommand to the module that holds it.

A module is imported when its subcommand is called, so that none pays for another.
"""

import importlib
import sys
from collections.abc import Sequence

from npu_runtime.errors import NpuError

__all__ = ["main"]

# Subcommand -> module with `main(arguments) -> exit code`, and what it does.
_COMMANDS = {
    "conformance": ("npu_ops.conformance.__main__", "compare npu with the CPU over torch's ops"),
    "explain": ("npu_ops.variants.explain", "which kernel serves a call, and why"),
    "new": ("npu_ops.scaffold.command", "write a wheel with an op of your own"),
    "tune": ("npu_ops.variants.tune", "measure program and host kernel for calls, and record it"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 2 for a wrong call or an error of the platform."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return 0 if given else 2
    name, *rest = given
    if name not in _COMMANDS:
        print(f"npu-ops: no command {name!r}.\n{_help()}", file=sys.stderr)
        return 2
    module = importlib.import_module(_COMMANDS[name][0])
    try:
        return int(module.main(rest))
    except NpuError as error:
        print(f"npu-ops {name}: {error}", file=sys.stderr)
        return 2


def _help() -> str:
    width = max(map(len, _COMMANDS))
    rows = [f"  {name:{width}}  {what}" for name, (_, what) in sorted(_COMMANDS.items())]
    return "\n".join(["usage: npu-ops COMMAND ...", "", *rows, "", "npu-ops COMMAND --help"])


if __name__ == "__main__":
    sys.exit(main())

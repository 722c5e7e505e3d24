"""The command ``npu-compiler``: hands each subcommand to the module that holds it.

A module is imported when its subcommand is called, so that none pays for another.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from npu_compiler.errors import CompilerError

__all__ = ["main"]

# Subcommand -> module with `main(arguments) -> exit code`, and what it does.
_COMMANDS = {
    "cache": ("npu_compiler.cache_command", "list or remove the programs that are kept"),
    "check": ("npu_compiler.readiness.rules", "say whether an exported model suits an NPU"),
    "explain": ("npu_compiler.explain_command", "run a script and say what was compiled"),
    "show": ("npu_compiler.show", "render the dumps of NPU_COMPILE_DEBUG as one HTML page"),
    "tune": ("npu_compiler.tuning.command", "measure ways to compile a script's graphs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 2 for a wrong call or an error of the platform."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return 0 if given else 2
    name, *rest = given
    if name not in _COMMANDS:
        print(f"npu-compiler: no command {name!r}.\n{_help()}", file=sys.stderr)
        return 2
    module = importlib.import_module(_COMMANDS[name][0])
    try:
        return int(module.main(rest))
    except CompilerError as error:
        print(f"npu-compiler {name}: {error}", file=sys.stderr)
        return 2


def _help() -> str:
    width = max(map(len, _COMMANDS))
    rows = [f"  {name:{width}}  {what}" for name, (_, what) in sorted(_COMMANDS.items())]
    return "\n".join(
        ["usage: npu-compiler COMMAND ...", "", *rows, "", "npu-compiler COMMAND --help"]
    )


if __name__ == "__main__":
    sys.exit(main())

"""`python -m npu_llm.compat`: runs a program that was written for another library."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from npu_command.errors import NpuError
from npu_command.running import ModuleProgram, Program, ScriptProgram
from npu_llm.compat.alias import activate
from npu_llm.errors import OptionError

_HELP = """\
usage: python -m npu_llm.compat (SCRIPT | -m MODULE) [ARGUMENT ...]

Run a Python program written for intel-npu-acceleration-library, unchanged. In its process
`import intel_npu_acceleration_library` imports npu-llm's modules with those names; nothing is
installed, and other processes are not affected.

  SCRIPT     the program's file
  -m MODULE  a module, as for python itself
  ARGUMENT   the program's arguments

Differences from the library: docs/guides/moving-from-intel-npu-acceleration-library.md
"""


def main(words: Sequence[str]) -> int:
    """Runs the program; its error or exit code ends the process.

    Args:
        words: the arguments.
    """
    if words and words[0] in ("-h", "--help"):
        print(_HELP, end="")
        return 0
    try:
        program = _find(words)
        activate()
    except NpuError as error:
        print(f"npu_llm.compat: {error}", file=sys.stderr)
        return 2
    program.run()
    return 0


def _find(words: Sequence[str]) -> Program:
    is_module = words[:1] == ["-m"]
    if len(words) <= is_module:
        raise OptionError(
            "`program` must be a script, or -m and a module, got none. Pass one, or see --help.",
            code="script-missing",
        )
    name, *arguments = words[is_module:]
    kind = ModuleProgram if is_module else ScriptProgram
    return kind.find(name, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a command tells beside its result: lines on stderr, under the command's name."""

import sys

from npu_command.answers import is_quiet

__all__ = ["say"]


def say(*lines: str) -> None:
    """Prints lines at once; nothing with --quiet, or where there is no stderr."""
    if is_quiet() or sys.stderr is None or sys.stderr.closed:
        return
    sys.stderr.write("".join(f"npu-profiler: {line}\n" for line in lines))
    sys.stderr.flush()

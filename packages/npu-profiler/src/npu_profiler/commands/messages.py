"""What a command tells beside its result: lines on stderr, under the command's name."""

import sys

__all__ = ["say"]


def say(*lines: str) -> None:
    """Prints lines at once; nothing where there is no stderr."""
    if sys.stderr is None or sys.stderr.closed:
        return
    sys.stderr.write("".join(f"npu-profiler: {line}\n" for line in lines))
    sys.stderr.flush()

"""Ctrl-C in the first moments of a command, while what handles it later is being imported.

It imports nothing that takes time.
"""

import os

__all__ = ["leave"]


def leave(*_: object) -> None:
    """What Ctrl-C does until npu_command.interrupt is there: the exit code, without a word."""
    os._exit(130)

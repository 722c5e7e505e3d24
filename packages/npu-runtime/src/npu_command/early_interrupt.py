"""Handles Ctrl-C in the first moments of a command, while npu_command.interrupt is imported.

It imports nothing slow.
"""

import os

__all__ = ["leave"]


def leave(*_: object) -> None:
    """Exits without a message, until npu_command.interrupt handles Ctrl-C."""
    os._exit(130)

"""Ctrl-C in the first moments of a command, while what handles it later is being imported.

It imports nothing that takes time.
"""

import os

__all__ = ["leave"]


def leave(*_: object) -> None:
    """Exits without a message, until npu_command.interrupt handles Ctrl-C."""
    os._exit(130)

"""A path to a folder that does not depend on where the folder is.

OpenVINO finds the compiled form of a program by a hash of the program's path. Under such a path it
still finds the compiled form of a folder that was moved, or copied to another machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["fixed_path"]

# A file descriptor that every process may have (soft limits are 1,024 and more), far above those
# that the system hands out, lowest first.
_NUMBER = 937
_lock = threading.Lock()


@contextmanager
def fixed_path(folder: Path) -> Iterator[Path]:
    """Yields a path to the folder that is the same for all folders.

    One body runs at a time. If the process already uses that path's file descriptor, or may not
    have it, the folder's own path is yielded, and a moved folder is recompiled.

    Args:
        folder: an existing folder.
    """
    with _lock:
        if _is_taken(_NUMBER):
            yield folder
            return
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.dup2(opened, _NUMBER, inheritable=False)
        except OSError:
            yield folder
            return
        finally:
            os.close(opened)
        try:
            yield Path(f"/proc/self/fd/{_NUMBER}")
        finally:
            with contextlib.suppress(OSError):
                os.close(_NUMBER)


def _is_taken(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True

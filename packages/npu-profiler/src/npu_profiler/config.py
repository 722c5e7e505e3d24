"""The only place of this package that touches the environment.

That is kineto's log level for one call, and where peaks of a device are kept.

Options of a recording are not environment variables; they are in `recorder.TraceOptions`.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from npu_command.setting_values import cache_directory

__all__ = ["quiet_kineto", "read_cache_dir"]

KINETO_LOG_LEVEL = "KINETO_LOG_LEVEL"


@contextlib.contextmanager
def quiet_kineto() -> Iterator[None]:
    """Keeps kineto's own start and stop lines off the program's stderr.

    Kineto reads the level once, when its first recording is prepared; the variable is gone again
    afterwards, so that the program and its children see the environment they were given. A level
    that the user set stays.
    """
    if KINETO_LOG_LEVEL in os.environ:
        yield
        return
    os.environ[KINETO_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        del os.environ[KINETO_LOG_LEVEL]


def read_cache_dir() -> Path:
    """The directory of measured peaks: `npu-profiler` in XDG_CACHE_HOME, else in ~/.cache."""
    return cache_directory("npu-profiler")

"""Settings from the environment; no other module of this package uses it.

These are kineto's log level for one call, and the cache directory of device peaks. Recording
options are in `recorder.TraceOptions`, not in environment variables.
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
    """Keeps kineto's start and stop lines off the program's stderr.

    Kineto reads the level once, before its first recording; the variable is removed afterwards, so
    that the program and its children keep their environment. A level set by the user is kept.
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
    """Returns the directory of measured peaks: `npu-profiler` in XDG_CACHE_HOME or ~/.cache."""
    return cache_directory("npu-profiler")

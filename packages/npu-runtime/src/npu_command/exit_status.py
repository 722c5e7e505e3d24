"""Exit status and message of errors that end a command.

Handles errors from outside the platform: Ctrl-C, a closed pipe, and refused memory or files. The
platform's errors are in npu_command.errors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
from collections.abc import Iterator

from npu_command.interrupt import EXIT_INTERRUPTED, leave_early

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_ERROR",
    "EXIT_INTERRUPTED",
    "HANDLED_ERRORS",
    "address_space_bytes",
    "is_memory_shortage",
    "report_error",
]

EXIT_ERROR = 2
# The shell's status of a process ended by a signal: 128 plus its number.
EXIT_BROKEN_PIPE = 141

# All that `report_error` may explain.
HANDLED_ERRORS: tuple[type[BaseException], ...] = (
    KeyboardInterrupt,
    MemoryError,
    OSError,
    RuntimeError,
    ImportError,
)

# Messages of libraries that run out of memory; they have no exception class for it.
_SHORTAGES = (
    "bad allocation",
    "bad_alloc",
    "can't allocate memory",
    "can't start new thread",
    "cannot allocate memory",
    "failed to map segment",
    "not enough memory",
    "resource temporarily unavailable",  # of threads
)


def report_error(program: str, error: BaseException) -> int:
    """Explains one of HANDLED_ERRORS on standard error; raises it if it is unknown.

    Returns the exit code: 130 after Ctrl-C, 141 after a closed pipe, else 2.
    """
    if isinstance(error, KeyboardInterrupt):
        _say(f"\n{program}: interrupted")
        leave_early()
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        drop_output()
        return EXIT_BROKEN_PIPE
    if is_memory_shortage(error) or _is_half_imported(error):
        _say(f"{program}: {_shortage(error)}")
        return EXIT_ERROR
    if isinstance(getattr(error, "code", None), str):  # npu_runtime's, which explains itself
        _say(f"{program}: {error}")
        return EXIT_ERROR
    if isinstance(error, ImportError) and not isinstance(root := [*_chain(error)][-1], ImportError):
        _say(f"{program}: {_unimportable(root)}")
        return EXIT_ERROR
    if isinstance(error, OSError) and error.errno is not None:
        rule = f"`{error.filename}` must be accessible"
        if error.filename is None:
            drop_output()
            rule = "`standard output` must be writable"
        _say(
            f"{program}: {rule}, got: {error.strerror}. Check its permissions and the free space, "
            "or choose another. [file-access]"
        )
        return EXIT_ERROR
    raise error


def is_memory_shortage(error: BaseException) -> bool:
    """Whether an error or one of its causes reports a lack of memory."""
    for seen in _chain(error):
        if isinstance(seen, MemoryError) or getattr(seen, "errno", None) == errno.ENOMEM:
            return True
        text = str(seen).lower()
        if isinstance(seen, HANDLED_ERRORS) and any(word in text for word in _SHORTAGES):
            return True
    return False


def _is_half_imported(error: BaseException) -> bool:
    """Whether a module lacks a name while memory is limited.

    Libraries continue without parts that failed to load, and later lack their names.
    """
    is_of_a_name = isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError)
    return is_of_a_name and address_space_bytes() is not None


def address_space_bytes() -> int | None:
    """Returns the address space limit of this process (`ulimit -v`); None if unlimited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def drop_output() -> None:
    """Discards the remaining standard output.

    Python would try to write it again at exit, and print an error.
    """
    if sys.stdout is None:
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shortage(error: BaseException) -> str:
    limit = address_space_bytes()
    bound = "" if limit is None else f" (ulimit -v allows {limit / 1e9:.1f} GB)"
    first = (str(error).strip().splitlines() or [""])[0].rstrip(". ")
    reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
    advice = "End other programs" if limit is None else "Raise the limit with ulimit -v"
    return (
        f"memory must be available{bound}, got: {reason}. {advice}, or request something smaller. "
        "[memory-exhausted]"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes: libraries that import late hide the first one."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _unimportable(root: BaseException) -> str:
    reason = (str(root).strip().splitlines() or [type(root).__name__])[0].rstrip(". ")
    return (
        f"libraries: the imports of this command must match the installed torch, got: {reason}. "
        "Reinstall the named library for this torch, or uninstall it if it is not needed; pip "
        "check lists conflicts. [library-import]"
    )


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)

"""Named ranges and marks with the API of ``torch.cuda.nvtx``, for existing code.

They are events of npu_runtime.observe (category ``user``), which a trace of npu-profiler shows; new
code uses ``npu_runtime.observe.span``.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

from npu_runtime import observe
from npu_runtime.errors import InputError
from npu_runtime.public_calls import public_call

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]

_CATEGORY = "user"


class _OpenRanges(threading.local):
    """The open ranges of a thread: name and start."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, int]] = []


_open_ranges = _OpenRanges()
_started: dict[int, tuple[str, int]] = {}  # ranges that may end on another thread
_handles = itertools.count(1)


def mark(msg: str) -> None:
    """Emits a mark."""
    observe.instant(_CATEGORY, msg)


def range_push(msg: str) -> int:
    """Opens a range nested in this thread's current range; returns the previous depth."""
    _open_ranges.stack.append((msg, time.time_ns()))
    return len(_open_ranges.stack) - 1


def range_pop() -> int:
    """Ends this thread's current range; returns the new depth, or -1 without a range."""
    if not _open_ranges.stack:
        return -1
    observe.span_since(_CATEGORY, *_open_ranges.stack.pop())
    return len(_open_ranges.stack)


def range_start(msg: str) -> int:
    """Opens a range that may end on any thread; returns its handle."""
    handle = next(_handles)
    _started[handle] = (msg, time.time_ns())
    return handle


def range_end(range_id: int) -> None:
    """Ends the range of a handle; ignores an unknown handle."""
    if found := _started.pop(range_id, None):
        observe.span_since(_CATEGORY, *found)


@contextlib.contextmanager
@public_call
def range(msg: str, *args: object, **kwargs: object) -> Iterator[None]:  # noqa: A001  # its name
    """Records the body as a range; ``msg`` is formatted with the arguments.

    Raises:
        InputError: ``msg`` cannot be formatted with them (code ``range-format``).
    """
    try:
        text = msg.format(*args, **kwargs)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise InputError(
            "torch.npu.nvtx.range: `msg` must be a format string for its arguments, got "
            f"{ascii(msg)[:80]}: {error}. Double literal braces.",
            code="range-format",
        ) from error
    with observe.span(_CATEGORY, text):
        yield

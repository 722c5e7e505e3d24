"""Events of the platform for listeners: work with its place and time.

All our packages emit events here, independently of listeners. Without listeners this costs one
check.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from npu_runtime.public_calls import public_call

__all__ = [
    "Event",
    "Listener",
    "add_listener",
    "counter",
    "flush",
    "instant",
    "is_enabled",
    "remove_listener",
    "span",
    "span_between",
    "span_of_thread",
    "span_since",
]

_logger = logging.getLogger(__name__)


_NO_ARGS: Mapping[str, object] = MappingProxyType({})


class Event(NamedTuple):
    """One thing that happened. A tuple, because there are hundreds of thousands a second.

    An enqueued run is two spans: ``launch``, on the thread that enqueued it, and ``program``, which
    a thread of the driver emits at its end. The ``args`` of ``program`` refer to the first:
    ``enqueue_thread_id`` and ``enqueue_ns`` are the thread and time of the launch.

    Attributes:
        kind: ``span`` (it lasted), ``instant`` (a mark) or ``counter`` (a value).
        category: kind of work: ``program``, ``launch``, ``compile``, ``kernel``, ``fallback``,
            ``copy``, ``sync``, ``memory``, ``prefill``, ...
        name: which program, op, stage or counter.
        start_ns: nanoseconds since the Unix epoch, the clock of ``time.time_ns``.
        duration_ns: nanoseconds; 0 unless a span.
        thread_id: the operating system's id of the emitting thread.
        value: the counter's value; 0.0 otherwise.
        args: details, JSON-like. Native events of a device have ``device_index``, those of a
            stream ``stream``.
    """

    kind: Literal["span", "instant", "counter"]
    category: str
    name: str
    start_ns: int
    duration_ns: int = 0
    thread_id: int = 0
    value: float = 0.0
    args: Mapping[str, object] = _NO_ARGS


Listener = Callable[[list[Event]], None]

_listeners: list[Listener] = []
_without_kernels: list[Listener] = []
_lock = threading.RLock()


def _replace_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)


@public_call
def add_listener(listener: Listener, *, with_kernels: bool = True) -> None:
    """Hands every later event to ``listener``, in lists, on whichever thread emits or flushes.

    Native events (programs, copies, allocations) are buffered and come with the next :func:`flush`
    or Python event. A listener that raises is removed and the exception logged: observing never
    changes a program's result.

    Args:
        listener: takes events.
        with_kernels: whether it needs the spans of category ``kernel``, one for each op: without
            them an op costs half as much. It gets them all the same while another needs them.
    """
    with _lock:
        _listeners.append(listener)
        if not with_kernels:
            _without_kernels.append(listener)
        _tell_native()


def remove_listener(listener: Listener) -> None:
    """Removes a listener after flushing its events. Ignores an unknown one."""
    flush()
    with _lock:
        _forget(listener)


def _forget(listener: Listener) -> None:
    for known in (_listeners, _without_kernels):
        if listener in known:
            known.remove(listener)
    _tell_native()


def _tell_native() -> None:
    from npu_runtime import _C  # late, here and below: it needs torch's libraries

    _C.set_kernels_wanted(any(listener not in _without_kernels for listener in _listeners))
    _C.set_listening(bool(_listeners))


def is_enabled() -> bool:
    """Whether anybody listens."""
    return bool(_listeners)


def flush() -> None:
    """Delivers buffered native events now."""
    if _listeners:
        _deliver([])


def span(category: str, name: str, **args: object) -> contextlib.AbstractContextManager[None]:
    """Emits a span over the body, also when the body raises."""
    return _Span(category, name, args) if _listeners else _NO_SPAN


def span_since(category: str, name: str, start_ns: int, **args: object) -> None:
    """Emits a span from ``start_ns`` (of ``time.time_ns``) until now."""
    _emit_span(category, name, start_ns, args)


def span_between(category: str, name: str, start_ns: int, end_ns: int, **args: object) -> None:
    """Emits a span that ran from start_ns to end_ns, times of ``time.time_ns``."""
    span_of_thread(threading.get_native_id(), category, name, start_ns, end_ns, **args)


def span_of_thread(
    thread_id: int, category: str, name: str, start_ns: int, end_ns: int, **args: object
) -> None:
    """Emits a span of another thread, by the system's id of it; see span_between."""
    if _listeners:
        _deliver([Event("span", category, name, start_ns, end_ns - start_ns, thread_id, 0.0, args)])


def instant(category: str, name: str, **args: object) -> None:
    """Emits a mark."""
    if _listeners:
        _deliver(
            [
                Event(
                    "instant",
                    category,
                    name,
                    time.time_ns(),
                    0,
                    threading.get_native_id(),
                    args=args,
                )
            ]
        )


def counter(category: str, name: str, value: float) -> None:
    """Emits a counter's value."""
    if _listeners:
        _deliver(
            [Event("counter", category, name, time.time_ns(), 0, threading.get_native_id(), value)]
        )


class _Span:
    """An open span. A class, as a generator's frame costs as much as the event."""

    __slots__ = ("_args", "_category", "_name", "_start_ns")

    def __init__(self, category: str, name: str, args: dict[str, object]) -> None:
        self._category = category
        self._name = name
        self._args = args

    def __enter__(self) -> None:
        self._start_ns = time.time_ns()

    def __exit__(self, *exc_info: object) -> None:
        _emit_span(self._category, self._name, self._start_ns, self._args)


_NO_SPAN = contextlib.nullcontext()


def _emit_span(category: str, name: str, start_ns: int, args: dict[str, object]) -> None:
    if _listeners:
        duration_ns = time.time_ns() - start_ns
        thread_id = threading.get_native_id()
        _deliver([Event("span", category, name, start_ns, duration_ns, thread_id, 0.0, args)])


def _deliver(python_events: list[Event]) -> None:
    from npu_runtime import _C

    with _lock:
        native, dropped = _C.drain_events()
        events = [*map(Event._make, native), *python_events]
        if dropped:
            now = time.time_ns()
            events.append(
                Event(
                    "counter",
                    "observe",
                    "dropped_events",
                    now,
                    0,
                    threading.get_native_id(),
                    dropped,
                )
            )
        if not events:
            return
        for listener in tuple(_listeners):
            try:
                listener(events)
            except Exception:
                _logger.exception(
                    "a listener of npu_runtime.observe raised and was removed: %r", listener
                )
                _forget(listener)

"""Streams and events of ``torch.npu``, and a debug mode that finds synchronizing host code.

A stream is an in-order queue of programs; an event is a point in it. The classes are torch's, which
use the device guard (csrc/device/guard.cpp). Host kernels run on the calling thread and wait for
pending data.
"""

import torch

from npu_runtime import _C
from npu_runtime.errors import InputError, KindError
from npu_runtime.npu.device import DeviceLike, device_index
from npu_runtime.public_calls import public_call

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
]

# torch's own classes: they take the accelerator's device, npu, when none is named, and
# elapsed_time refuses a subclass.
Stream = torch.Stream
Event = torch.Event

_DEFAULT_STREAM_ID = 0


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """Returns this thread's current stream."""
    return torch.accelerator.current_stream(device_index(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """A device's default stream."""
    current = current_stream(device)
    return torch.Stream(
        stream_id=_DEFAULT_STREAM_ID,
        device_index=current.device_index,
        device_type=current.device_type,
    )


def set_stream(stream: torch.Stream) -> None:
    """Sets this thread's current stream, and its device as the current device."""
    _check(stream)
    torch.accelerator.set_stream(stream)


@public_call
def get_stream_from_external(data_ptr: int, device: DeviceLike = None) -> torch.Stream:
    """Returns the stream of a ``native_handle`` from a library outside torch.

    Args:
        data_ptr: the handle.
        device: the stream's device; the current one by default.

    Raises:
        InputError: the runtime did not create this stream (code ``stream-external``). Other streams
            are not supported, because a driver's streams are opaque.
    """
    index = device_index(device)
    if not 0 <= data_ptr < 2**64:
        raise InputError(
            f"torch.npu: a stream's native handle must be an address, got {data_ptr:#x}. Pass the "
            "native_handle of a torch.npu.Stream.",
            code="stream-external",
        )
    return _C.find_stream(index, data_ptr)


class ExternalStream(torch.Stream):
    """The stream of a native handle, as :func:`get_stream_from_external` finds it.

    ``ExternalStream(stream_ptr, device=None)`` takes the same arguments.
    """

    def __new__(cls, stream_ptr: int, device: DeviceLike = None) -> "ExternalStream":
        """Finds the stream; the handle is not stored."""
        found = get_stream_from_external(stream_ptr, device)
        return super().__new__(
            cls,
            stream_id=found.stream_id,
            device_index=found.device_index,
            device_type=found.device_type,
        )


_SYNC_DEBUG_MODES = {"default": 0, "warn": 1, "error": 2}


@public_call
def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Reports host code that waits for the device.

    This includes reading a number (``.item()``), a copy between cpu and npu that is not
    ``non_blocking``, a host kernel with a pending input, and ``Stream.synchronize``. Waiting for a
    device or an event is never reported.

    Args:
        debug_mode: ``"default"`` or 0 reports nothing, ``"warn"`` or 1 warns, ``"error"`` or 2
            raises ``RuntimeError`` (code ``sync-debug``).

    Raises:
        InputError: the value is invalid (code ``sync-debug``).
    """
    mode = _SYNC_DEBUG_MODES.get(debug_mode, -1) if isinstance(debug_mode, str) else debug_mode
    if mode not in _SYNC_DEBUG_MODES.values():
        raise InputError(
            'torch.npu.set_sync_debug_mode: the mode must be "default", "warn" or "error", or 0, 1 '
            f'or 2, got {debug_mode!r}. Pass "warn" for warnings.',
            code="sync-debug",
        )
    _C.set_sync_debug_mode(mode)


def get_sync_debug_mode() -> int:
    """Returns the mode of :func:`set_sync_debug_mode`: 0, 1 or 2."""
    return _C.sync_debug_mode()


class StreamContext:
    """Makes a stream current inside ``with``; None has no effect.

    torch's streams are contexts too, but store the previous stream in the object: two threads
    inside one stream would restore each other's.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[int, torch.Stream]] = []

    def __enter__(self) -> None:
        if self.stream is None:
            return
        _check(self.stream)
        previous = torch.accelerator.current_stream(self.stream.device_index)
        self._previous.append((_C.current_device(), previous))
        torch.accelerator.set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self.stream is None:
            return
        device, previous = self._previous.pop()
        torch.accelerator.set_stream(previous)
        _C.set_device(device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Runs the body of ``with`` on a stream; None has no effect."""
    return StreamContext(stream)


def _check(stream: torch.Stream) -> None:
    if not isinstance(stream, torch.Stream):
        raise KindError(
            f"torch.npu: a stream must be a torch.Stream, got {type(stream).__name__}. Make one "
            "with torch.npu.Stream().",
            code="argument-kind",
        )
    if stream.device.type != "npu":
        device_index(stream.device)  # raises, with the accepted types

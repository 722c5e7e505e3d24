"""Streams and events of ``torch.npu``: in-order queues of programs, and points in their order.

The classes are torch's own, which reach the device through its guard (csrc/device/guard.cpp).
Host kernels run on the calling thread and wait for what they touch.
"""

import torch

from npu_runtime import _C
from npu_runtime.npu.device import DeviceLike, device_index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]

# torch's own classes: they take the accelerator's device, npu, when none is named, and
# elapsed_time refuses a subclass.
Stream = torch.Stream
Event = torch.Event

_DEFAULT_STREAM_ID = 0


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream that this thread's programs go to."""
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
    """Makes a stream this thread's current one, and its device the current device."""
    _check(stream)
    torch.accelerator.set_stream(stream)


def _check(stream: torch.Stream) -> None:
    if stream.device.type != "npu":
        device_index(stream.device)  # raises, and says what it takes


class StreamContext:
    """Makes a stream the current one inside ``with``; None changes nothing.

    torch's streams are contexts themselves, but keep what was current before in the stream: two
    threads inside one stream would restore each other's.
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
    """Runs the body of ``with`` on a stream; None changes nothing."""
    return StreamContext(stream)

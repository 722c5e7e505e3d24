"""Streams and events of ``torch.npu``: torch's own classes, on this device.

Each device has one stream, its default one.
"""

import contextlib
from collections.abc import Iterator

import torch

from npu_runtime.npu.device import DeviceLike, device_index

__all__ = ["Event", "Stream", "current_stream", "default_stream", "set_stream", "stream"]

# torch's own classes: they take the accelerator's device, npu, when none is named, and
# elapsed_time refuses a subclass.
Stream = torch.Stream
Event = torch.Event


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream that work on a device goes to."""
    return torch.accelerator.current_stream(device_index(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """A device's default stream, which is its only one."""
    return current_stream(device)


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream the current one. A device has one stream, so there is nothing to change."""
    device_index(stream.device)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Runs the body on a stream; None changes nothing."""
    if stream is not None:
        set_stream(stream)
    yield

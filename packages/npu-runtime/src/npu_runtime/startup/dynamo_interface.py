"""npu for dynamo: current device, streams, events and properties while it traces.

Importing this module registers it, and imports dynamo.
"""

import contextlib
import dataclasses
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from npu_runtime import _C, npu
from npu_runtime.npu.device import DeviceProperties

__all__ = ["NpuInterface", "TracedProperties"]


@dataclasses.dataclass(frozen=True)
class TracedProperties(DeviceProperties):
    """What is known of a device, and what Inductor wants to know."""

    multi_processor_count: int  # threads that run Inductor's loops, which are on the host


def _properties(device: Any) -> TracedProperties:
    known = npu.get_device_properties(device)
    fields = {field.name: getattr(known, field.name) for field in dataclasses.fields(known)}
    return TracedProperties(**fields, multi_processor_count=torch.get_num_threads())


class NpuInterface(DeviceInterface):
    """What dynamo asks of a device, answered by ``torch.npu``."""

    device = npu.device
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """The same in a process that compiles for another one."""

        @staticmethod
        def set_device(device: int) -> None:
            """Makes a device current."""
            npu.set_device(device)

        @staticmethod
        def current_device() -> int:
            """Index of the current device."""
            return npu.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> TracedProperties:
            """Properties of a device."""
            return _properties(device)

    @staticmethod
    def get_device_properties(device: Any = None) -> TracedProperties:
        """Properties of a device."""
        return _properties(device)

    @staticmethod
    def current_device() -> int:
        """Index of the current device."""
        return npu.current_device()

    @staticmethod
    def set_device(device: Any) -> None:
        """Makes a device current."""
        npu.set_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        """Makes a device current; returns the one that was."""
        return _C.exchange_device(device)

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        """The same; a negative index changes nothing."""
        return _C.exchange_device(device) if device >= 0 else _C.current_device()

    @staticmethod
    def device_count() -> int:
        """Number of devices."""
        return npu.device_count()

    @staticmethod
    def is_available() -> bool:
        """Whether a device can serve."""
        return npu.is_available()

    @staticmethod
    def stream(stream: torch.Stream) -> contextlib.AbstractContextManager[None]:
        """Runs the body on a stream."""
        return npu.stream(stream)

    @staticmethod
    def current_stream() -> torch.Stream:
        """The current device's current stream."""
        return npu.current_stream()

    @staticmethod
    def set_stream(stream: torch.Stream) -> None:
        """Makes a stream the current one."""
        npu.set_stream(stream)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        npu.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """The current stream's id, which generated code passes around."""
        return npu.current_stream(device_idx).stream_id

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Waits for all work on a device."""
        npu.synchronize(device)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """What the device computes in, as one word: part of dynamo's cache keys."""
        return "+".join(npu.get_device_capability(device))

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Whether bfloat16 works."""
        return npu.is_bf16_supported(including_emulation)

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        """Bytes that tensors hold."""
        return npu.memory_allocated(device)


register_interface_for_device("npu", NpuInterface)

"""Dynamo's interface of npu: current device, streams, events and properties during tracing.

Importing this module registers the interface, and imports dynamo.
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
    """Device properties for dynamo and Inductor."""

    multi_processor_count: int  # threads of Inductor's loops, which run on the host


def _properties(device: Any) -> TracedProperties:
    known = npu.get_device_properties(device)
    fields = {field.name: getattr(known, field.name) for field in dataclasses.fields(known)}
    return TracedProperties(**fields, multi_processor_count=torch.get_num_threads())


class NpuInterface(DeviceInterface):
    """Dynamo's device interface, implemented by ``torch.npu``."""

    device = npu.device
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """The interface in a process that compiles for another process."""

        @staticmethod
        def set_device(device: int) -> None:
            """Sets the current device."""
            npu.set_device(device)

        @staticmethod
        def current_device() -> int:
            """Returns the index of the current device."""
            return npu.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> TracedProperties:
            """Returns the properties of a device."""
            return _properties(device)

    @staticmethod
    def get_device_properties(device: Any = None) -> TracedProperties:
        """Returns the properties of a device."""
        return _properties(device)

    @staticmethod
    def current_device() -> int:
        """Returns the index of the current device."""
        return npu.current_device()

    @staticmethod
    def set_device(device: Any) -> None:
        """Sets the current device."""
        npu.set_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        """Sets the current device; returns the previous one."""
        return _C.exchange_device(device)

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        """Like exchange_device; a negative index changes nothing."""
        return _C.exchange_device(device) if device >= 0 else _C.current_device()

    @staticmethod
    def device_count() -> int:
        """Returns the number of devices."""
        return npu.device_count()

    @staticmethod
    def is_available() -> bool:
        """Whether a device is available."""
        return npu.is_available()

    @staticmethod
    def stream(stream: torch.Stream) -> contextlib.AbstractContextManager[None]:
        """Runs the body on a stream."""
        return npu.stream(stream)

    @staticmethod
    def current_stream() -> torch.Stream:
        """Returns the current stream of the current device."""
        return npu.current_stream()

    @staticmethod
    def set_stream(stream: torch.Stream) -> None:
        """Sets the current stream."""
        npu.set_stream(stream)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        npu.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Returns the current stream's id, which generated code passes around."""
        return npu.current_stream(device_idx).stream_id

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Waits for all work on a device."""
        npu.synchronize(device)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """Returns the device's dtypes as one word, a part of dynamo's cache keys."""
        return "+".join(npu.get_device_capability(device))

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Whether bfloat16 is supported."""
        return npu.is_bf16_supported(including_emulation)

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        """Returns the bytes allocated by tensors."""
        return npu.memory_allocated(device)


register_interface_for_device("npu", NpuInterface)

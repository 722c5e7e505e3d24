"""Checks of the list of devices and their properties."""

import ctypes
from ctypes import byref, c_int32

from npu_runtime.driver_conformance.bench import Bench, expect
from npu_runtime.driver_conformance.driver_table import DeviceProperties
from npu_runtime.driver_conformance.registry import check

__all__: list[str] = []

_GUARD = b"\x5a" * 64


@check("device_count")
def is_positive_and_stays(bench: Bench) -> None:
    """At least one device, and the same number each time."""
    counts = [bench.device_count() for _ in range(3)]
    expect(counts[0] > 0 and len(set(counts)) == 1, f"gave {counts}")


@check("device_properties")
def fills_every_field_and_no_more(bench: Bench) -> None:
    """Texts end within their fields, numbers are set, and nothing is written behind the struct."""
    size = ctypes.sizeof(DeviceProperties)
    for device in range(bench.device_count()):
        memory = ctypes.create_string_buffer(b"\xff" * size + _GUARD)
        properties = DeviceProperties.from_buffer(memory)
        bench.must("device_properties", device, byref(properties))
        for name in ("name", "full_name", "driver_version", "capabilities"):
            field = getattr(DeviceProperties, name)
            raw = memory.raw[field.offset : field.offset + field.size]
            expect(
                b"\0" in raw,
                f"{name} of device {device} does not end within its {field.size} bytes",
            )
        expect(bool(properties.name), f"device {device} has no name")
        expect(bool(properties.full_name), f"device {device} has no full_name")
        expect(properties.memory_bytes != 2**64 - 1, f"memory_bytes of device {device} is not set")
        expect(properties.inline_below_ns >= 0, f"inline_below_ns of device {device} is not set")
        expect(memory.raw[size : size + len(_GUARD)] == _GUARD, "wrote behind the struct")


@check("device_properties")
def refuses_an_index_that_does_not_exist(bench: Bench) -> None:
    """-1, and one past the last."""
    count = c_int32()
    bench.must("device_count", byref(count))
    for index in (-1, count.value):
        bench.refuses("device_properties", index, byref(DeviceProperties()), what=f"device {index}")

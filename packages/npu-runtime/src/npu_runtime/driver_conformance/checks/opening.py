"""Opening checks: the table's head, open, error messages, and device properties."""

import ctypes
import threading
from ctypes import byref, c_int32, c_int64, c_void_p

from npu_runtime.driver_conformance.bench import Bench, CheckFailure, expect
from npu_runtime.driver_conformance.driver_table import ABI_VERSION, DeviceProperties, Status
from npu_runtime.driver_conformance.isolation import LastCall, run_isolated
from npu_runtime.driver_conformance.registry import check

__all__: list[str] = []


@check("abi_version", is_open=False)
def is_the_one_of_this_runtime(bench: Bench) -> None:
    """The runtime refuses any other version."""
    expect(
        bench.table.abi_version == ABI_VERSION,
        f"is {bench.table.abi_version}; this runtime has {ABI_VERSION}",
    )


@check("name", is_open=False)
def is_what_the_driver_is_asked_for_by(bench: Bench) -> None:
    """NPU_DRIVER accepts the name that ``npu-runtime info`` shows."""
    name = (bench.table.name or b"").decode(errors="replace")
    expect(
        name == bench.driver.name, f"is {name!r}; the driver is installed as {bench.driver.name!r}"
    )


@check("last_error", is_open=False)
def is_text_before_any_failure(bench: Bench) -> None:
    """Never returns NULL."""
    bench.last_error()


@check("last_error")
def names_the_call_that_failed(bench: Bench) -> None:
    """One line of the form "call: cause"."""
    bench.call("device_properties", -1, byref(DeviceProperties()))
    bench.expect_sentence()


@check("last_error")
def tells_of_the_latest_failure(bench: Bench) -> None:
    """A second failure replaces the first message."""
    bench.call("device_properties", -1, byref(DeviceProperties()))
    first = bench.last_error()
    event = bench.event()
    bench.call("event_time_ns", event, byref(c_int64()))
    expect(bench.last_error() != first, f"says {first!r} after two different failures")


@check("last_error")
def belongs_to_the_calling_thread(bench: Bench) -> None:
    """A failure on another thread leaves this thread's message unchanged."""
    bench.call("device_properties", -1, byref(DeviceProperties()))
    before = bench.last_error()
    event = bench.event()
    told: list[str] = []

    def fail() -> None:
        bench.call("event_time_ns", event, byref(c_int64()))
        told.append(bench.last_error())

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    expect(told != [before], "returns the same on a thread that failed in another call")
    expect(bench.last_error() == before, "changed when another thread's call failed")


@check("open", is_open=False)
def opens_a_device(bench: Bench) -> None:
    """Opens the requested device, or the driver's default."""
    bench.open()
    expect(bench.device_count() > 0, "gave NPU_OK and no device")


@check("open", is_open=False)
def refuses_an_absent_device(bench: Bench) -> None:
    """Returns NPU_ERROR_ABSENT with a message, and never opens another device."""
    library = bench.driver.vendor_library
    status = bench.call("open", library and library.encode(), b"NO_SUCH_DEVICE")
    expect(
        status == Status.ERROR_ABSENT,
        f"gave npu_status {status} for a device that is not there; the rule is NPU_ERROR_ABSENT",
    )
    expect("NO_SUCH_DEVICE" in bench.last_error(), "the message does not name the requested device")


@check("open", is_open=False)
def opens_each_device_by_its_own_name(bench: Bench) -> None:
    """Every name from ``device_properties`` can be opened."""

    def first_name(_: LastCall) -> str:
        bench.open()
        return _name(bench)

    child = run_isolated(first_name, timeout_s=60)
    if child.problem:
        raise CheckFailure(child.problem)
    library = bench.driver.vendor_library
    bench.must("open", library and library.encode(), str(child.value).encode())
    expect(_name(bench) == child.value, f"requested {child.value!r}, but {_name(bench)!r} serves")


def _name(bench: Bench) -> str:
    properties = DeviceProperties()
    bench.must("device_properties", 0, byref(properties))
    return bytes(properties.name).decode(errors="replace")


@check("choice_reason")
def is_one_line(bench: Bench) -> None:
    """``npu-runtime info`` shows it on one line."""
    reason = bench.call("choice_reason")
    expect(bool(reason), "gave no text")
    expect(b"\n" not in reason, "gave several lines")


@check("memory_attach", is_open=False)
def takes_a_range_as_large_as_the_runtimes(bench: Bench) -> None:
    """Attaches a range of 1 TiB and commits its last page."""
    library, device = bench.driver.vendor_library, bench.driver.device
    bench.must("open", library and library.encode(), device and device.encode())
    size_bytes = 1 << 40
    begin = bench.reserve(size_bytes)
    bench.must("memory_attach", c_void_p(begin), size_bytes)
    page = 4096
    last = begin + size_bytes - page
    status = bench.call("memory_commit", 0, last, page)
    expect(status == Status.OK, f"the range's last page cannot be committed: {bench.last_error()}")
    if bench.has("host_access_begin"):
        bench.must("host_access_begin", 0, last, page)
    c_int64.from_address(last).value = 42
    expect(c_int64.from_address(last).value == 42, "the range's last page does not hold a value")


_GUARD = b"\x5a" * 64


@check("device_count")
def is_positive_and_stays(bench: Bench) -> None:
    """Returns at least one device, and the same number on each call."""
    counts = [bench.device_count() for _ in range(3)]
    expect(counts[0] > 0 and len(set(counts)) == 1, f"gave {counts}")


@check("device_properties")
def fills_every_field_and_no_more(bench: Bench) -> None:
    """Texts end within their fields, numbers are set, and no byte after the struct changes."""
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

"""Drivers with one function broken on purpose, and a program that runs the conformance on each.

Run as a program: a driver must not be opened in the process that forks the checks, and pytest's
process may have opened one. Prints {"field.fault": [[check, outcome, reason], ...]} as JSON.
"""

import ctypes
import dataclasses
import json
import sys
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_size_t, c_void_p
from typing import Any

from npu_runtime.driver_conformance.driver_table import (
    DeviceProperties,
    DriverTable,
    LayerRecord,
    Port,
    Status,
)
from npu_runtime.driver_conformance.locate import find_driver
from npu_runtime.driver_conformance.run import run_checks, select_checks

Replacement = Callable[..., Any]
kept: list[object] = []  # tables and callbacks live as long as the process


@dataclasses.dataclass(frozen=True)
class Fault:
    """One way to break one field: `make` gets the real table and returns the field's new value."""

    field: str
    name: str
    make: Callable[[DriverTable], Any]
    base: str = "sim"

    @property
    def label(self) -> str:
        return f"{self.field}.{self.name}"


def value_at(pointer: Any, kind: Any) -> Any:
    return ctypes.cast(pointer, ctypes.POINTER(kind)).contents


def does_nothing(_: DriverTable) -> Replacement:
    return lambda *arguments: Status.OK


def fails_always(_: DriverTable) -> Replacement:
    return lambda *arguments: Status.ERROR


def crashes(_: DriverTable) -> Replacement:
    return lambda *arguments: ctypes.string_at(8)


def on_device_0(field: str) -> Callable[[DriverTable], Replacement]:
    def make(real: DriverTable) -> Replacement:
        return lambda device, *rest: getattr(real, field)(0, *rest)

    return make


def gives_one_handle(field: str) -> Callable[[DriverTable], Replacement]:
    """The first handle again and again."""

    def make(real: DriverTable) -> Replacement:
        first: list[int] = []

        def create(*arguments: Any) -> int:
            status = getattr(real, field)(*arguments)
            handle = value_at(arguments[-1], c_void_p)
            if status == Status.OK:
                first.append(handle.value)
                handle.value = first[0]
            return status

        return create

    return make


def sets_flag(value: int) -> Callable[[DriverTable], Replacement]:
    def make(_: DriverTable) -> Replacement:
        def query(_: int, flag: Any) -> int:
            value_at(flag, c_int32).value = value
            return Status.OK

        return query

    return make


def opens_another_device(real: DriverTable) -> Replacement:
    return lambda library, device: real.open(library, None)


def counts_no_device(_: DriverTable) -> Replacement:
    def count(result: Any) -> int:
        value_at(result, c_int32).value = 0
        return Status.OK

    return count


def fills_the_whole_name(real: DriverTable) -> Replacement:
    def properties(device: int, result: Any) -> int:
        status = real.device_properties(device, result)
        ctypes.memset(ctypes.addressof(value_at(result, DeviceProperties)), ord("x"), 64)
        return status

    return properties


def decommits_a_page_more(real: DriverTable) -> Replacement:
    return lambda device, address, size: real.memory_decommit(device, address, size + 4096)


def closes_every_window(real: DriverTable) -> Replacement:
    def end(device: int, address: int, size: int) -> int:
        status = real.host_access_end(device, address, size)
        while real.host_access_end(device, address, size) == Status.OK:
            pass
        return status

    return end


def every_second_copy_overtakes(real: DriverTable) -> Replacement:
    def copy(stream: int, to: int, source: int, size: int, done: Any, context: int) -> int:
        if not done or context % 2 == 1:
            return real.memory_copy(stream, to, source, size, done, context)
        ctypes.memmove(to, source, size)
        done(context, Status.OK, b"")
        return Status.OK

    return copy


def copies_a_byte_less(real: DriverTable) -> Replacement:
    return lambda stream, to, source, size, done, context: real.memory_copy(
        stream, to, source, max(size - 1, 0), done, context
    )


def never_tells(field: str) -> Callable[[DriverTable], Replacement]:
    def make(real: DriverTable) -> Replacement:
        def work(*arguments: Any) -> int:
            *rest, _, context = arguments
            return getattr(real, field)(*rest, type(arguments[-2])(), context)

        return work

    return make


def tells_twice(field: str) -> Callable[[DriverTable], Replacement]:
    def make(real: DriverTable) -> Replacement:
        def work(*arguments: Any) -> int:
            *rest, done, context = arguments
            status = getattr(real, field)(*rest, done, context)
            if done:
                done(context, Status.OK, b"")
            return status

        return work

    return make


def refuses_priorities(real: DriverTable) -> Replacement:
    return lambda device, priority, stream: (
        Status.ERROR_UNSUPPORTED if priority else real.stream_create(device, 0, stream)
    )


def counts_microseconds(real: DriverTable) -> Replacement:
    def time_ns(event: int, result: Any) -> int:
        status = real.event_time_ns(event, result)
        value_at(result, c_int64).value //= 1000
        return status

    return time_ns


def takes_any_event(real: DriverTable) -> Replacement:
    def time_ns(event: int, result: Any) -> int:
        real.event_time_ns(event, result)
        return Status.OK

    return time_ns


def gives_now(_: DriverTable) -> Replacement:
    import time

    def time_ns(event: int, result: Any) -> int:
        value_at(result, c_int64).value = time.monotonic_ns()
        return Status.OK

    return time_ns


def counts_one_port(_: DriverTable) -> Replacement:
    def count(program: int, direction: int, result: Any) -> int:
        value_at(result, c_size_t).value = 1
        return Status.OK

    return count


def first_port_always(field: str) -> Callable[[DriverTable], Replacement]:
    def make(real: DriverTable) -> Replacement:
        def call(first: int, *rest: Any) -> int:
            if field == "request_output":
                return real.request_output(first, 0, *rest[1:])
            return getattr(real, field)(first, rest[0], 0, *rest[2:])

        return call

    return make


def drops_a_dim(real: DriverTable) -> Replacement:
    def port(program: int, direction: int, index: int, result: Any) -> int:
        status = real.program_port(program, direction, index, result)
        value_at(result, Port).rank -= 1
        return status

    return port


def adds_a_dim(real: DriverTable) -> Replacement:
    def output(request: int, index: int, result: Any, data: Any) -> int:
        status = real.request_output(request, index, result, data)
        port = value_at(result, Port)
        port.dims[port.rank] = 1
        port.rank += 1
        return status

    return output


def writes_past_the_room(real: DriverTable) -> Replacement:
    def read(program: int, key: bytes, value: int, room: int) -> int:
        return real.program_property(program, key, value, 16)

    return read


def knows_every_key(real: DriverTable) -> Replacement:
    return lambda program, key, value, room: real.program_property(
        program, b"LOADED_FROM_CACHE", value, room
    )


def runs_at_once_behind_pending_copies(real: DriverTable) -> Replacement:
    """Every run goes to a separate stream, so it overtakes enqueued work."""
    streams: list[c_void_p] = []

    def run(request: int, stream: int, done: Any, context: int) -> int:
        if not streams:
            streams.append(c_void_p())
            real.stream_create(0, 0, ctypes.byref(streams[0]))
        return real.request_run(request, streams[0], done, context)

    return run


def hides_failures(real: DriverTable) -> Replacement:
    def run(request: int, stream: int, done: Any, context: int) -> int:
        real.request_run(request, stream, type(done)(), None)
        if done:
            done(context, Status.OK, b"")
        return Status.OK

    return run


def counts_what_fits(real: DriverTable) -> Replacement:
    def layers(request: int, records: Any, capacity: int, count: Any) -> int:
        status = real.request_layers(request, records, capacity, count)
        total = value_at(count, c_size_t)
        total.value = min(total.value, capacity) if records else total.value
        return status

    return layers


def fills_one_more(real: DriverTable) -> Replacement:
    def layers(request: int, records: Any, capacity: int, count: Any) -> int:
        status = real.request_layers(request, records, capacity, count)
        if records and status == Status.OK:
            end = ctypes.addressof(records.contents) + capacity * ctypes.sizeof(LayerRecord)
            ctypes.memset(end, 0, 1)
        return status

    return layers


def fails_otherwise(real: DriverTable) -> Replacement:
    def layers(*arguments: Any) -> int:
        return Status.ERROR if real.request_layers(*arguments) != Status.OK else Status.OK

    return layers


FAULTS = (
    Fault("abi_version", "is another", lambda real: 2),
    Fault("name", "is another", lambda real: b"other"),
    Fault("last_error", "is NULL", lambda real: None),
    Fault("last_error", "names no call and never changes", lambda real: real.choice_reason),
    Fault("open", "opens another device", opens_another_device),
    Fault("open", "fails", fails_always),
    Fault("choice_reason", "is empty", lambda real: real.last_error),
    Fault("device_count", "counts none", counts_no_device),
    Fault("device_count", "does nothing", does_nothing),
    Fault("device_properties", "takes any index", on_device_0("device_properties")),
    Fault("device_properties", "fills the whole name", fills_the_whole_name),
    Fault("device_properties", "does nothing", does_nothing),
    Fault("memory_attach", "does nothing", does_nothing),
    Fault("memory_commit", "does nothing", does_nothing, "openvino"),
    Fault("memory_commit", "takes any index", on_device_0("memory_commit")),
    Fault("memory_decommit", "does nothing", does_nothing, "openvino"),
    Fault("memory_decommit", "decommits a page more", decommits_a_page_more),
    Fault("host_access_begin", "does nothing", does_nothing),
    Fault("host_access_begin", "alone is NULL", lambda real: None),
    Fault("host_access_end", "does nothing", does_nothing),
    Fault("host_access_end", "closes every window", closes_every_window),
    Fault("memory_copy", "does nothing", does_nothing),
    Fault("memory_copy", "overtakes", every_second_copy_overtakes, "openvino"),
    Fault("memory_copy", "copies a byte less", copies_a_byte_less),
    Fault("memory_copy", "never tells", never_tells("memory_copy")),
    Fault("memory_copy", "tells twice", tells_twice("memory_copy")),
    Fault("stream_create", "gives one handle", gives_one_handle("stream_create")),
    Fault("stream_create", "refuses priorities", refuses_priorities),
    Fault("stream_create", "takes any index", on_device_0("stream_create")),
    Fault("stream_destroy", "does nothing", does_nothing),
    Fault("stream_query", "always says idle", sets_flag(1)),
    Fault("stream_query", "gives no flag", sets_flag(7)),
    Fault("stream_synchronize", "does nothing", does_nothing),
    Fault("stream_wait_event", "does nothing", does_nothing),
    Fault("event_create", "gives one handle", gives_one_handle("event_create")),
    Fault("event_create", "takes any index", on_device_0("event_create")),
    Fault("event_destroy", "does nothing", does_nothing),
    Fault("event_destroy", "crashes", crashes),
    Fault("event_record", "does nothing", does_nothing),
    Fault("event_query", "always says done", sets_flag(1)),
    Fault("event_synchronize", "does nothing", does_nothing),
    Fault("event_time_ns", "counts microseconds", counts_microseconds),
    Fault("event_time_ns", "takes any event", takes_any_event),
    Fault("event_time_ns", "gives the time of the question", gives_now),
    Fault("program_load", "fails", fails_always),
    Fault("program_load", "takes any index", on_device_0("program_load")),
    Fault("program_load", "crashes", crashes),
    Fault("program_unload", "does nothing", does_nothing),
    Fault("program_port_count", "counts one", counts_one_port),
    Fault("program_port", "drops a dim", drops_a_dim),
    Fault("program_port", "takes any index", first_port_always("program_port")),
    Fault("program_property", "writes past the room", writes_past_the_room),
    Fault("program_property", "knows every key", knows_every_key),
    Fault("request_create", "gives one handle", gives_one_handle("request_create")),
    Fault("request_destroy", "does nothing", does_nothing),
    Fault("request_bind", "takes any index", first_port_always("request_bind")),
    Fault("request_bind", "does nothing", does_nothing),
    Fault("request_run", "does nothing", does_nothing),
    Fault("request_run", "tells twice", tells_twice("request_run")),
    Fault("request_run", "overtakes", runs_at_once_behind_pending_copies),
    Fault("request_run", "hides failures", hides_failures),
    Fault("request_output", "adds a dim", adds_a_dim),
    Fault("request_output", "takes any index", first_port_always("request_output")),
    Fault("request_layers", "counts what fits", counts_what_fits),
    Fault("request_layers", "fills one more", fills_one_more),
    Fault("request_layers", "fails otherwise", fails_otherwise),
)


def broken_table(fault: Fault, address: int) -> int:
    """The address of a copy of the table with one field replaced."""
    real = DriverTable.from_address(address)
    copy = DriverTable.from_buffer_copy(real)
    made = fault.make(real)
    kind = dict(DriverTable._fields_)[fault.field]
    is_function = issubclass(kind, ctypes._CFuncPtr)
    value = (
        kind()
        if made is None
        else kind(made)
        if is_function and not isinstance(made, kind)
        else made
    )
    setattr(copy, fault.field, value)
    kept.extend([copy, value, real])
    return ctypes.addressof(copy)


def results_of(fault: Fault) -> list[list[str]]:
    good = find_driver(fault.base)
    bad = dataclasses.replace(good, table_address=lambda: broken_table(fault, good.table_address()))
    results = run_checks(bad, select_checks(f"{fault.field}.*"), timeout_s=10)
    return [[result.check, result.outcome, result.reason] for result in results]


if __name__ == "__main__":
    wanted = sys.argv[1:]
    chosen = [fault for fault in FAULTS if not wanted or fault.label in wanted]
    print(json.dumps({fault.label: results_of(fault) for fault in chosen}))

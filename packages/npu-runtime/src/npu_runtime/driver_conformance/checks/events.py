"""Event checks: recording, querying, waiting and elapsed time."""

import time
from ctypes import byref, c_int64, c_void_p

from npu_runtime.driver_conformance.bench import Bench, expect, expect_no_growth
from npu_runtime.driver_conformance.driver_table import Status
from npu_runtime.driver_conformance.registry import check

__all__: list[str] = []


@check("event_create")
def makes_events_apart(bench: Bench) -> None:
    """Each event has a different handle."""
    events = [bench.event() for _ in range(100)]
    expect(len({event.value for event in events}) == 100, "two events have one handle")


@check("event_create")
def refuses_a_device_that_does_not_exist(bench: Bench) -> None:
    """-1, and one past the last."""
    for index in (-1, bench.device_count()):
        bench.refuses("event_create", index, byref(c_void_p()), what=f"device {index}")


@check("event_destroy")
def takes_events_recorded_or_not(bench: Bench) -> None:
    """Destroys events that were never recorded, are done, or are pending."""
    stream = bench.stream()
    bench.call("event_destroy", bench.event())
    finished, pending = bench.event(), bench.event()
    bench.must("event_record", finished, stream)
    bench.must("stream_synchronize", stream)
    bench.call("event_destroy", finished)
    done = bench.enqueue_busy_work(stream)
    bench.must("event_record", pending, stream)
    bench.call("event_destroy", pending)
    bench.must("stream_synchronize", stream)
    bench.expect_all_done(done, "an event was destroyed")


@check("event_destroy")
def gives_its_memory_back(bench: Bench) -> None:
    """Creating and destroying events repeatedly does not leak memory."""
    expect_no_growth(
        lambda: bench.call("event_destroy", bench.event()), times=20000, what="an event"
    )


@check("event_record")
def marks_the_end_of_earlier_work(bench: Bench) -> None:
    """The event is done when all earlier work is done, and not before."""
    stream, event = bench.stream(), bench.event()
    done = bench.enqueue_busy_work(stream)
    bench.must("event_record", event, stream)
    while not bench.is_done(event):
        pass
    bench.expect_all_done(done, "the event was done")


@check("event_record")
def replaces_the_former_point(bench: Bench) -> None:
    """A finished event is pending again when it is recorded after new work."""
    stream, event = bench.stream(), bench.event()
    bench.must("event_record", event, stream)
    bench.must("event_synchronize", event)
    done = bench.enqueue_busy_work(stream)
    bench.must("event_record", event, stream)
    bench.must("event_synchronize", event)
    bench.expect_all_done(done, "the second record was done")


@check("event_query")
def says_done_before_any_record_and_after_the_work(bench: Bench) -> None:
    """An unrecorded event is done; a recorded one is done after its stream was synchronized."""
    stream, event = bench.stream(), bench.event()
    expect(bench.is_done(event), "an event that was never recorded is not done")
    bench.enqueue_busy_work(stream)
    bench.must("event_record", event, stream)
    bench.must("stream_synchronize", stream)
    expect(bench.is_done(event), "the event is not done after its stream was waited for")


@check("event_query")
def never_says_done_while_work_is_pending(bench: Bench) -> None:
    """When the event is done, the earlier work has called its callbacks."""
    stream = bench.stream()
    for _ in range(3):
        event = bench.event()
        done = bench.enqueue_busy_work(stream)
        bench.must("event_record", event, stream)
        while not bench.is_done(event):
            pass
        bench.expect_all_done(done, "event_query returned done")


@check("event_synchronize")
def waits_for_the_work_before_the_event(bench: Bench) -> None:
    """After the wait, the earlier work is done and has called its callbacks."""
    stream, event = bench.stream(), bench.event()
    done = bench.enqueue_busy_work(stream)
    bench.must("event_record", event, stream)
    bench.must("event_synchronize", event)
    bench.expect_all_done(done, "event_synchronize")


@check("event_synchronize")
def returns_where_nothing_was_recorded(bench: Bench) -> None:
    """Returns at once for an unrecorded event."""
    bench.must("event_synchronize", bench.event())


@check("event_time_ns")
def counts_nanoseconds_forward(bench: Bench) -> None:
    """Two points 50 ms apart on the host clock are 50 ms apart on the device clock, in order."""
    stream, times = bench.stream(), []
    start = time.monotonic_ns()
    for number in range(2):
        event = bench.event()
        bench.must("event_record", event, stream)
        bench.must("event_synchronize", event)
        times.append(bench.event_time_ns(event))
        if number == 0:
            time.sleep(0.05)
    most = time.monotonic_ns() - start
    apart = times[1] - times[0]
    expect(
        45_000_000 <= apart <= most + 5_000_000,
        f"two events that are 50 ms apart are {apart} ns apart",
    )


@check("event_time_ns")
def follows_the_streams_order(bench: Bench) -> None:
    """A later event of a stream never has an earlier time."""
    stream = bench.stream()
    events = []
    for _ in range(4):
        bench.enqueue_busy_work(stream)
        event = bench.event()
        bench.must("event_record", event, stream)
        events.append(event)
    bench.must("stream_synchronize", stream)
    times = [bench.event_time_ns(event) for event in events]
    expect(times == sorted(times), f"the times of four events in a row are {times}")


@check("event_time_ns")
def stays_once_it_is_known(bench: Bench) -> None:
    """Repeated calls return the same time."""
    stream, event = bench.stream(), bench.event()
    bench.must("event_record", event, stream)
    bench.must("event_synchronize", event)
    first = bench.event_time_ns(event)
    time.sleep(0.002)
    expect(bench.event_time_ns(event) == first, "a done event has another time when asked again")


@check("event_time_ns")
def refuses_an_event_that_is_not_done(bench: Bench) -> None:
    """Unrecorded and pending events are refused."""
    bench.refuses(
        "event_time_ns", bench.event(), byref(c_int64()), what="an event that was never recorded"
    )
    stream, event = bench.stream(), bench.event()
    bench.enqueue_busy_work(stream)
    bench.must("event_record", event, stream)
    status = bench.call("event_time_ns", event, byref(c_int64()))
    expect(
        status == Status.ERROR_ARGUMENT or bench.is_done(event),
        "gave a time for an event that is not done",
    )

"""Stream checks: creation, synchronization, queries and waits for events."""

from ctypes import byref, c_void_p

from npu_runtime.driver_conformance.bench import Bench, expect, expect_no_growth
from npu_runtime.driver_conformance.registry import check

__all__: list[str] = []

_COUNT = 1 << 16


@check("stream_create")
def makes_streams_of_both_priorities(bench: Bench) -> None:
    """Priorities 0 and -1 (urgent) both run work."""
    one = bench.floats([1, 2, 3])
    for priority in (0, -1):
        stream, other = bench.stream(priority=priority), bench.floats([0, 0, 0])
        bench.copy(stream, other, one, 12)
        expect(
            bench.read_floats(other, 3).tolist() == [1, 2, 3], f"priority {priority} did no work"
        )


@check("stream_create")
def makes_many_streams(bench: Bench) -> None:
    """The runtime creates up to 32 streams per device, each independent."""
    streams = [bench.stream() for _ in range(32)]
    expect(len({stream.value for stream in streams}) == 32, "two streams have one handle")
    done, one, other = bench.done(), bench.floats([1]), bench.commit(4096)
    for number, stream in enumerate(streams):
        target = other.address + 4 * number
        bench.must("memory_copy", stream, target, one.address, 4, done.callback, number)
    for stream in streams:
        bench.must("stream_synchronize", stream)
    expect(sorted(done.contexts) == list(range(32)), "not every stream did its work")
    expect(bench.read_floats(other, 32).tolist() == [1] * 32, "a stream's copy is missing")


@check("stream_create")
def refuses_a_device_that_does_not_exist(bench: Bench) -> None:
    """-1, and one past the last."""
    for index in (-1, bench.device_count()):
        bench.refuses("stream_create", index, 0, byref(c_void_p()), what=f"device {index}")


@check("stream_destroy")
def waits_for_pending_work(bench: Bench) -> None:
    """After the call, all enqueued work is done and has called its callbacks."""
    stream = bench.stream()
    done = bench.enqueue_busy_work(stream)
    bench.call("stream_destroy", stream)
    bench.expect_all_done(done, "stream_destroy")


@check("stream_destroy")
def takes_a_stream_that_was_never_used(bench: Bench) -> None:
    """Destroying an unused stream keeps the others working."""
    kept = bench.stream()
    for _ in range(100):
        bench.call("stream_destroy", bench.stream())
    one, other = bench.floats([4]), bench.floats([0])
    bench.copy(kept, other, one, 4)
    expect(bench.read_floats(other, 1)[0] == 4, "another stream stopped working")


@check("stream_destroy")
def gives_its_memory_back(bench: Bench) -> None:
    """Creating and destroying streams repeatedly does not leak memory."""
    expect_no_growth(
        lambda: bench.call("stream_destroy", bench.stream()), times=3000, what="a stream"
    )


@check("stream_query")
def says_idle_before_and_after_work(bench: Bench) -> None:
    """A new stream is idle, and so is one that was synchronized."""
    stream = bench.stream()
    expect(bench.is_idle(stream), "a new stream is not idle")
    bench.enqueue_busy_work(stream)
    bench.must("stream_synchronize", stream)
    expect(bench.is_idle(stream), "a stream is not idle after stream_synchronize")


@check("stream_query")
def never_says_idle_while_work_is_pending(bench: Bench) -> None:
    """When the stream is idle, all enqueued work has called its callbacks."""
    stream = bench.stream()
    for _ in range(3):
        done = bench.enqueue_busy_work(stream)
        while not bench.is_idle(stream):
            pass
        bench.expect_all_done(done, "stream_query returned idle")


@check("stream_synchronize")
def waits_for_all_work_of_the_stream(bench: Bench) -> None:
    """After the call, all enqueued work is done and has called its callbacks, in order."""
    stream = bench.stream()
    for _ in range(3):
        done = bench.enqueue_busy_work(stream)
        bench.must("stream_synchronize", stream)
        bench.expect_all_done(done, "stream_synchronize")


@check("stream_synchronize")
def returns_on_an_idle_stream(bench: Bench) -> None:
    """Works on an unused and on a used stream."""
    stream = bench.stream()
    bench.must("stream_synchronize", stream)
    bench.enqueue_busy_work(stream)
    for _ in range(2):
        bench.must("stream_synchronize", stream)


def _copy_after_slow_work(
    bench: Bench, *, destroy: bool = False, record_again: bool = False
) -> None:
    """One stream fills a block late; another waits for the event and must copy the new bytes."""
    first, second, third = bench.stream(), bench.stream(), bench.stream()
    fresh = bench.floats([5] * _COUNT)
    late, copied = bench.floats([0] * _COUNT), bench.floats([0] * _COUNT)
    event, done = bench.event(), bench.done()
    size = 4 * _COUNT
    bench.enqueue_busy_work(first)
    bench.must("memory_copy", first, late.address, fresh.address, size, done.callback, 1)
    bench.must("event_record", event, first)
    bench.must("stream_wait_event", second, event)
    if record_again:
        bench.must("event_record", event, third)  # idle: this point is done at once
    if destroy:
        bench.call("event_destroy", event)
    bench.must("memory_copy", second, copied.address, late.address, size, done.callback, 2)
    bench.must("stream_synchronize", second)
    expect(done.contexts == [1, 2], "work after the wait ran before the event was done")
    expect(
        bool((bench.read_floats(copied, _COUNT) == 5).all()),
        "work after the wait did not see the writes before the event",
    )


@check("stream_wait_event")
def orders_work_across_streams(bench: Bench) -> None:
    """Work after the wait sees the other stream's work before the event."""
    _copy_after_slow_work(bench)


@check("stream_wait_event")
def keeps_the_point_it_waited_for(bench: Bench) -> None:
    """Recording the event on another stream does not release an earlier wait."""
    _copy_after_slow_work(bench, record_again=True)


@check("event_destroy")
def leaves_those_who_wait_waiting(bench: Bench) -> None:
    """The runtime destroys an event right after a stream began to wait for it."""
    _copy_after_slow_work(bench, destroy=True)


@check("stream_wait_event")
def passes_an_event_that_was_never_recorded(bench: Bench) -> None:
    """An unrecorded event does not block."""
    stream = bench.stream()
    bench.must("stream_wait_event", stream, bench.event())
    one, other = bench.floats([6]), bench.floats([0])
    bench.copy(stream, other, one, 4)
    expect(bench.read_floats(other, 1)[0] == 6, "work after the wait was not done")


@check("stream_wait_event")
def waits_for_the_latest_record(bench: Bench) -> None:
    """An event recorded on an idle and then on a busy stream waits for the busy stream."""
    idle, busy, waiting = bench.stream(), bench.stream(), bench.stream()
    event, told = bench.event(), bench.done()
    bench.must("event_record", event, idle)
    done = bench.enqueue_busy_work(busy)
    bench.must("event_record", event, busy)
    bench.must("stream_wait_event", waiting, event)
    one = bench.floats([1])
    bench.must("memory_copy", waiting, one.address, one.address, 0, told.callback, 1)
    bench.must("stream_synchronize", waiting)
    bench.expect_all_done(done, "a wait for the latest record")

from npu_profiler.queries.memory import Place, Whereabouts, find_peak, memory_curves, rises
from npu_profiler.reading import load_trace
from npu_profiler.trace_format.timeline import Sample, Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
WORKER = Track(1, 2, "worker", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")


def op(name, start, end, track=MAIN):
    return Slice(track, "cpu_op", name, start, end - start)


def samples(*values):
    return [Sample(PROGRAMS, "memory", "allocated_bytes", time, value) for time, value in values]


def test_peak_is_held_by_what_was_not_freed_again(write_trace):
    trace = load_trace(
        write_trace(
            slices=[
                Slice(MAIN, "user_annotation", "forward", 0, 60),
                op("aten::linear", 10, 20),
                op("aten::empty", 11, 19),
                op("aten::relu", 30, 40),
                op("aten::mm", 70, 80),
            ],
            samples=samples((1, 100), (15, 600), (35, 800), (45, 300), (75, 1_300), (90, 0)),
        )
    )
    peak = find_peak(trace.counters[0], Whereabouts(trace))
    assert (peak.time_ns, peak.size_bytes, peak.place) == (75, 1_300, Place("aten::mm"))
    held = {holder.place: holder.size_bytes for holder in peak.holders}
    # The fall by 500 is that of the linear, although the relu came later.
    assert held == {
        Place("(at or before the first sample)"): 100,
        Place("aten::relu", "forward"): 200,
        Place("aten::mm"): 1_000,
    }
    assert sum(held.values()) == peak.size_bytes


def test_fall_of_no_known_size_frees_what_came_last(write_trace):
    trace = load_trace(
        write_trace(
            slices=[op("aten::a", 10, 20), op("aten::b", 30, 40), op("aten::c", 50, 60)],
            samples=samples((1, 0), (15, 100), (35, 200), (45, 70), (55, 500)),
        )
    )
    peak = find_peak(trace.counters[0], Whereabouts(trace))
    assert {holder.place.op: holder.size_bytes for holder in peak.holders} == {
        "aten::c": 430,
        "aten::a": 70,
        "(at or before the first sample)": 0,
    }


def test_place_is_of_the_thread_that_began_last_and_names_backward(write_trace):
    name = "autograd::engine::evaluate_function: MmBackward0"
    trace = load_trace(
        write_trace(
            slices=[op("aten::sort", 0, 99), op(name, 5, 90, WORKER), op("aten::mm", 6, 80, WORKER)]
        )
    )
    whereabouts = Whereabouts(trace)
    assert whereabouts.at(50) == Place("aten::mm", "MmBackward0")
    assert whereabouts.at(95) == Place("aten::sort")
    assert whereabouts.at(200).op.startswith("(no op")


def test_rises_say_what_the_busiest_thread_did(write_trace):
    trace = load_trace(
        write_trace(
            slices=[op("aten::mm", 10, 30), op("aten::add", 0, 5, WORKER)],
            samples=[
                Sample(MAIN, "process memory", "resident_bytes", time, value)
                for time, value in ((0, 100), (20, 900), (40, 950), (60, 10))
            ],
        )
    )
    first, second = rises(trace, trace.counters[0], count=5)
    assert (first.start_ns, first.size_bytes, first.host) == (0, 800, (("aten::mm", 10),))
    assert (second.size_bytes, second.host) == (50, (("aten::mm", 10),))


def test_curves_of_memory_come_from_devices_first_and_no_other_counters(write_trace):
    trace = load_trace(
        write_trace(
            samples=[
                Sample(MAIN, "process memory", "resident_bytes", 1, 5),
                Sample(PROGRAMS, "queue", "stream 0", 2, 1),
                *samples((3, 7)),
            ]
        )
    )
    assert [curve.series for curve in memory_curves(trace)] == ["allocated_bytes", "resident_bytes"]

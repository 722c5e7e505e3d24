"""Busy devices, gaps, launches and steps of a trace."""

import pytest

from npu_profiler.queries.overview import overview
from npu_profiler.queries.programs import layer_kinds, layer_rows, layered_program_ns, program_rows
from npu_profiler.queries.spans import busy_intervals, device_gaps, find_steps, host_activity, merge
from npu_profiler.reading import load_trace
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")
SECOND = Track(1 << 22, (1 << 22) + 1, "programs (2)", "npu:0")
COPIES = Track(1 << 22, (1 << 22) + 2, "copies", "npu:0")


def program(name, start, end, track=PROGRAMS):
    return Slice(track, "program", name, start, end - start)


def layer(name, start, us, kind="FullyConnected", **args):
    given = {"type": kind, "precision": "f32", "implementation": "gemm", "duration_us": us}
    return Slice(PROGRAMS, "layer", name, start, us * 1000, {**given, **args})


def test_merged_intervals_keep_their_time():
    assert merge([(5, 9), (0, 3), (2, 4), (4, 5), (20, 21), (20, 20)]) == [(0, 9), (20, 21)]


def test_layers_are_held_against_the_runs_that_told_them(write_trace):
    trace = load_trace(
        write_trace(
            slices=[
                program("a", 0, 10_000),
                layer("mm", 0, 6),
                layer("relu", 6_000, 3, "Eltwise"),
                program("a", 20_000, 28_000),
                program("b", 30_000, 35_000),
                layer("mm", 30_000, 5, inputs="f32[2,3] f32[4,3]", outputs="f32[2,4]"),
            ]
        )
    )
    first, second = program_rows(trace)
    assert (first.name, first.runs, first.total_ns, first.mean_ns) == ("a", 2, 18_000, 9_000)
    assert (first.layered, first.layered_ns, first.layer_ns) == (1, 10_000, 9_000)
    assert (second.least_ns, second.most_ns, second.layer_ns) == (5_000, 5_000, 5_000)
    rows = layer_rows(trace)
    assert [(row.name, row.program, row.total_ns) for row in rows] == [
        ("mm", "a", 6_000),
        ("mm", "b", 5_000),
        ("relu", "a", 3_000),
    ]
    assert [row.flops for row in rows] == [None, 2 * 2 * 3 * 4, None]
    assert rows[1].moved_bytes == 4 * (2 * 3 + 4 * 3 + 2 * 4)
    assert sum(row.total_ns for row in rows) <= layered_program_ns(trace) == 15_000
    kinds = layer_kinds(trace)
    assert [(row.kind, row.layers, row.calls) for row in kinds] == [
        ("FullyConnected", 2, 2),
        ("Eltwise", 1, 1),
    ]


def test_busy_time_counts_overlapping_runs_once(write_trace):
    trace = load_trace(
        write_trace(
            slices=[
                program("a", 0, 100),
                program("b", 50, 150, SECOND),
                program("a", 300, 400),
                Slice(COPIES, "copy", "cpu to npu", 500, 50, {"bytes": 4096, "device_index": 0}),
            ]
        )
    )
    assert busy_intervals(trace) == {0: [(0, 150), (300, 400)]}
    found = overview(trace)
    (device,) = found.devices
    assert (device.busy_ns, device.program_ns, device.active_ns, device.gaps) == (250, 300, 400, 1)
    assert (found.wall_ns, found.copies[0].size_bytes, found.copies[0].count) == (550, 4096, 1)


def test_gap_says_what_the_thread_that_ended_it_did(write_trace):
    trace = load_trace(
        write_trace(
            slices=[
                program("a", 0, 100),
                program("b", 1_000, 1_100),
                program("a", 1_200, 1_300),
                Slice(MAIN, "cpu_op", "aten::sort", 50, 550),
                Slice(MAIN, "cpu_op", "aten::copy_", 200, 100),
                Slice(MAIN, "cpu_op", "npu::program b", 950, 200),
            ],
            flows=[Flow("launch", "launch", FlowEnd(MAIN, 960), FlowEnd(PROGRAMS, 1_000))],
        )
    )
    (gap,) = device_gaps(trace, busy_intervals(trace), count=1)
    assert (gap.start_ns, gap.duration_ns, gap.before) == (100, 900, "b")
    spent = dict(gap.host)
    assert (spent["aten::sort"], spent["aten::copy_"], spent["npu::program b"]) == (400, 100, 50)
    assert sum(spent.values()) == gap.duration_ns


def test_gap_before_a_program_that_no_op_launched_is_that_of_its_thread(write_trace):
    trace = load_trace(
        write_trace(
            slices=[
                program("a", 0, 100),
                program("b", 1_000, 1_100),
                Slice(MAIN, "cpu_op", "aten::argmax", 200, 100),
            ],
            flows=[Flow("launch", "launch", FlowEnd(MAIN, 1_000), FlowEnd(PROGRAMS, 1_000))],
        )
    )
    (gap,) = device_gaps(trace, busy_intervals(trace), count=1)
    assert (gap.before, dict(gap.host)["aten::argmax"]) == ("b", 100)


def test_activity_of_an_idle_thread_is_nothing_that_was_recorded(write_trace):
    trace = load_trace(write_trace(slices=[Slice(MAIN, "cpu_op", "aten::mm", 0, 10)]))
    ((name, spent_ns),) = host_activity(trace.tracks[0], 20, 50)
    assert (name.startswith("(no op"), spent_ns) == (True, 30)


STEPS = Track(1, 9, "prefill and decode", "python x.py")


def mark(name, start, end):
    return Slice(MAIN, "user_annotation", name, start, end - start)


DECODES = [Slice(STEPS, kind, f"{kind} 1", at, 5) for at, kind in [(0, "prefill"), (8, "decode")]]
OPTIMIZERS = [mark("Optimizer.step#SGD.step", at, at + 2) for at in (10, 30)]


@pytest.mark.parametrize(
    "slices, found",
    [
        ([], []),
        ([mark("forward", 0, 9)], []),
        (DECODES, [("prefill", 1, 0, 5), ("decode", 1, 8, 13)]),
        ([*DECODES, *OPTIMIZERS], [("prefill", 1, 0, 5), ("decode", 1, 8, 13)]),
        ([mark("ProfilerStep#1", 3, 7), *OPTIMIZERS], [("step", 1, 3, 7)]),
        (
            [mark("forward", 4, 6), *OPTIMIZERS],
            [("optimizer step", 1, 0, 12), ("optimizer step", 2, 12, 32)],
        ),
        (
            [*OPTIMIZERS, mark("Optimizer.step#Adam.step", 14, 15)],
            [("optimizer step", 1, 0, 12), ("optimizer step", 2, 12, 32)],
        ),
    ],
    ids=["empty", "other", "answer", "answer first", "profiler", "optimizer", "two optimizers"],
)
def test_steps_are_the_first_kind_that_a_trace_has(write_trace, slices, found):
    begin = Slice(MAIN, "sync", "synchronize", 0, 0)  # times count from the first event
    steps = find_steps(load_trace(write_trace(slices=[begin, *slices])))
    assert [(step.kind, step.number, step.start_ns, step.end_ns) for step in steps] == found

from npu_profiler.queries.ops import fallback_totals, op_rows
from npu_profiler.queries.spans import launches
from npu_profiler.reading import load_trace
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
WORKER = Track(1, 2, "worker", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")


def op(name, start, end, track=MAIN):
    return Slice(track, "cpu_op", name, start, end - start)


def rows_of(path):
    trace = load_trace(path)
    return {row.name: row for row in op_rows(trace, launches(trace))}


def test_own_times_add_up_to_the_time_in_ops(write_trace):
    rows = rows_of(
        write_trace(
            slices=[
                Slice(MAIN, "user_annotation", "step", 0, 500),
                op("aten::linear", 0, 100),
                op("AddmmBackward0", 5, 90),
                op("aten::addmm", 10, 70),
                op("aten::sum", 200, 300),
                op("aten::sum", 210, 250),
                op("aten::sum", 0, 40, WORKER),
            ]
        )
    )
    assert rows.keys() == {"aten::linear", "aten::addmm", "aten::sum"}
    assert sum(row.self_ns for row in rows.values()) == 100 + 100 + 40
    linear, total = rows["aten::linear"], rows["aten::sum"]
    assert (linear.calls, linear.self_ns, linear.total_ns) == (1, 40, 100)
    assert (total.calls, total.self_ns, total.total_ns) == (3, 140, 140)


def test_programs_count_for_all_ops_around_their_launch(write_trace):
    rows = rows_of(
        write_trace(
            slices=[
                op("aten::matmul", 0, 100),
                op("npu::program graph_0", 10, 90),
                op("aten::matmul", 20, 30),
                Slice(PROGRAMS, "program", "graph_0", 40, 25),
                Slice(PROGRAMS, "layer", "mm", 40, 25),
            ],
            flows=[Flow("launch", "launch", FlowEnd(MAIN, 25), FlowEnd(PROGRAMS, 40))],
        )
    )
    assert {name: row.device_ns for name, row in rows.items()} == {
        "aten::matmul": 25,
        "npu::program graph_0": 25,
    }


def test_fallbacks_are_those_of_the_op_around_them(write_trace):
    path = write_trace(
        slices=[op("aten::sum", 0, 100), op("aten::mm", 200, 300)],
        instants=[
            Instant(MAIN, "fallback", "aten::sum.dim_IntList", 10, {"duration_us": 0.08}),
            Instant(MAIN, "fallback", "aten::roll", 150, {"duration_us": 2}),
        ],
    )
    rows = rows_of(path)
    assert (rows["aten::sum"].fallbacks, rows["aten::mm"].fallbacks) == (1, 0)
    assert list(fallback_totals(load_trace(path)).items()) == [
        ("aten::roll", (1, 2_000)),
        ("aten::sum.dim_IntList", (1, 80)),
    ]

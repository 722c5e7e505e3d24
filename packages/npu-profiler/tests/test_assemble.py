import torch  # noqa: F401  # autoloads npu_runtime

from npu_profiler.assemble import Recorded, assemble
from npu_profiler.clock import ClockMark
from npu_profiler.kineto_file import KinetoFile, TorchFlow, TorchSlice
from npu_profiler.torch_ops import OpWindow
from npu_runtime.observe import Event

BASE = 1_795_000_000_000_000_000


def op(name, start, end, thread_id=1, category="cpu_op"):
    return TorchSlice(category, name, thread_id, BASE + start, end - start, None)


def window(*slices, flows=(), marks=(), start=0, end=1000, end_reason=""):
    recorded = KinetoFile(list(slices), list(flows), {}, 0)
    return OpWindow(BASE + start, BASE + end, end_reason, recorded, list(marks))


def span(category, name, start, end, thread_id=1, **args):
    return Event("span", category, name, BASE + start, end - start, thread_id, args=args)


def build(*windows, events=(), **fields):
    return assemble(
        Recorded("x.py", 1, BASE, BASE + 1000, windows=windows, events=events, **fields)
    )


def test_torch_times_are_put_on_the_system_clock():
    marks = [ClockMark(BASE, BASE + 10, BASE + 505)]
    found = build(window(op("aten::mm", 600, 700), marks=marks))
    assert found.facts["clock_offset_ns"] == 500
    assert found.facts["clock_error_ns"] == 5
    assert found.slices[0].start_ns == BASE + 100


def test_program_is_on_the_device_and_led_to_by_its_op():
    found = build(window(op("aten::linear", 0, 100)), events=[span("program", "linear_0", 10, 90)])
    by_category = {item.category: item for item in found.slices}
    assert by_category["program"].track.process == "npu:0"
    (flow,) = found.flows
    assert flow.source.track == by_category["cpu_op"].track
    assert flow.target.track == by_category["program"].track


def test_enqueued_program_is_led_to_by_the_op_that_enqueued_it():
    found = build(
        window(op("aten::linear", 0, 50), op("aten::add", 60, 200)),
        events=[
            span("launch", "linear_0", 10, 20),
            span("program", "linear_0", 70, 90, 7, enqueue_thread_id=1, enqueue_ns=BASE + 10),
        ],
    )
    by_name = {item.name: item for item in found.slices}
    assert by_name["launch linear_0"].track.name == "main thread"
    (flow,) = found.flows
    assert (flow.source.track.name, flow.source.time_ns) == ("main thread", BASE + 10)
    assert (flow.target.track.process, flow.target.time_ns) == ("npu:0", BASE + 70)


def test_waiting_for_the_device_is_a_slice_of_its_thread():
    found = build(events=[span("sync", "stream", 10, 20, stream=3)])
    (wait,) = found.slices
    assert (wait.name, wait.track.name) == ("synchronize stream", "main thread")


def test_program_of_a_decode_step_is_led_to_by_the_step():
    found = build(events=[span("decode", "step 5", 0, 100), span("program", "llama", 10, 90)])
    assert found.flows[0].source.track.name == "prefill and decode"
    assert [item.category for item in found.slices] == ["decode", "program"]


def test_a_host_kernel_is_not_drawn_beside_its_op():
    found = build(events=[span("kernel", "aten::add", 10, 1010)])
    assert found.slices == ()
    assert found.instants == ()


def test_fallback_is_a_mark_on_its_thread():
    found = build(events=[span("fallback", "aten::roll", 10, 1010, reason="no kernel")])
    (mark,) = found.instants
    assert (mark.name, mark.track.name) == ("aten::roll", "main thread")
    assert mark.args == {"reason": "no kernel", "duration_us": 1.0}
    assert found.slices == ()


def test_counters_are_samples_and_infinite_values_are_left_out():
    events = [
        Event("counter", "memory", "allocated_bytes", BASE + 5, value=64.0),
        Event("counter", "memory", "allocated_bytes", BASE + 6, value=float("inf")),
    ]
    (sample,) = build(events=events).samples
    assert (sample.counter, sample.series, sample.value) == ("memory", "allocated_bytes", 64.0)


def test_backward_is_led_to_by_its_forward():
    flow = TorchFlow(1, BASE + 10, 2, BASE + 110)
    found = build(window(op("aten::mm", 0, 50), op("MmBackward0", 100, 150, 2), flows=[flow]))
    assert found.flows[0].name == "forward to backward"
    assert found.flows[0].target.track.tid == 2


def test_gaps_between_and_after_windows_are_marked_with_their_reason():
    found = build(
        window(op("a", 0, 1), end=100, end_reason="x"),
        window(op("b", 301, 302), start=300, end=400, end_reason="y"),
    )
    gaps = [item for item in found.slices if item.category == "recording"]
    assert [(gap.name, gap.start_ns - BASE, gap.end_ns - BASE) for gap in gaps] == [
        ("ops not recorded: x", 100, 300),
        ("ops not recorded: y", 400, 1000),
    ]


def test_end_of_the_recording_is_no_gap():
    assert [item.name for item in build(window(op("a", 0, 1), end=999)).slices] == ["a"]


def test_own_python_calls_are_left_out():
    found = build(
        window(
            op("npu_profiler/cli.py(40): main", 0, 100, category="python_function"),
            op("train.py(3): step", 10, 20, category="python_function"),
        )
    )
    assert [item.name for item in found.slices] == ["train.py(3): step"]


def test_own_thread_is_left_out():
    found = build(window(op("aten::mm", 0, 10, 7), op("aten::mm", 20, 30)), own_thread_id=7)
    assert [item.start_ns - BASE for item in found.slices] == [20]
    assert [track.tid for track in found.tracks] == [1]


def test_timeline_begins_with_what_began_before_the_recording():
    found = build(events=[span("program", "early", -50, 10)])
    assert found.start_ns == BASE - 50

import pytest
import torch  # noqa: F401  # autoloads npu_runtime

from npu_profiler.recording.assemble import Assembler
from npu_profiler.torch_side.kineto_file import ClockAlignment, KinetoFile, TorchFlow, TorchSlice
from npu_profiler.torch_side.torch_windows import OpWindow
from npu_profiler.trace_format.tracks import Tracks
from npu_runtime.observe import Event

BASE = 1_795_000_000_000_000_000


def op(name, start, end, thread_id=1, category="cpu_op"):
    return TorchSlice(category, name, thread_id, BASE + start, end - start, None)


def window(*slices, flows=(), start=0, end=1000, end_reason=""):
    recorded = KinetoFile(list(slices), list(flows), {}, 0)
    return OpWindow(BASE + start, BASE + end, end_reason, recorded, [])


def span(category, name, start, end, thread_id=1, **args):
    return Event("span", category, name, BASE + start, end - start, thread_id, args=args)


@pytest.fixture
def assembler():
    return Assembler(Tracks(pid=1, program="x.py", thread_name=lambda _: ""))


def place_windows(assembler, *windows, offset_ns=0, own_thread_id=None):
    alignment = ClockAlignment(offset_ns, 0, 1)
    return assembler.place_windows(windows, alignment, own_thread_id=own_thread_id)


def test_torch_times_are_put_on_the_system_clock(assembler):
    found = place_windows(assembler, window(op("aten::mm", 600, 700)), offset_ns=500)
    assert found.slices[0].start_ns == BASE + 100


def test_program_is_on_the_device_and_led_to_from_its_thread(assembler):
    found = assembler.place([span("program", "linear_0", 10, 90)])
    (program,) = found.slices
    assert program.track.process == "npu:0"
    (flow,) = found.flows
    assert (flow.source.track.name, flow.source.time_ns) == ("main thread", BASE + 10)
    assert (flow.target.track, flow.target.time_ns) == (program.track, BASE + 10)


def test_enqueued_program_is_led_to_by_the_call_that_enqueued_it(assembler):
    found = assembler.place(
        [
            span("launch", "linear_0", 10, 20),
            span("program", "linear_0", 70, 90, 7, enqueue_thread_id=1, enqueue_ns=BASE + 10),
        ]
    )
    by_name = {item.name: item for item in found.slices}
    assert by_name["launch linear_0"].track.name == "main thread"
    (flow,) = found.flows
    assert (flow.source.track.name, flow.source.time_ns) == ("main thread", BASE + 10)
    assert (flow.target.track.process, flow.target.time_ns) == ("npu:0", BASE + 70)


def test_layers_stand_within_their_program(assembler):
    layer = {"type": "FullyConnected", "implementation": "brgemm_avx512_amx_bf16", "told_us": 3}
    found = assembler.place(
        [
            span("program", "linear_0", 10, 4000, device_index=0),
            span("layer", "addmm_35/aten.addmm.default", 10, 3010, **layer),
            span("layer", "relu", 3010, 5000, type="Eltwise", implementation="ref_any", told_us=2),
        ]
    )
    program, addmm, relu = found.slices
    assert {item.track for item in found.slices} == {program.track}
    assert addmm.args == {
        "type": "FullyConnected",
        "precision": "bf16",
        "implementation": "brgemm_avx512_amx_bf16",
        "duration_us": 3,
        "start": "laid out by execution order",
    }
    assert relu.args["precision"] == ""
    assert relu.end_ns == program.end_ns


def test_a_layer_may_tell_its_module_itself(assembler):
    told = {"type": "Linear", "implementation": "avx512_bf16", "module": "lm_head"}
    events = [span("program", "a", 10, 4000), span("layer", "Linear lm_head", 10, 20, **told)]
    _, layer = assembler.place(events).slices
    assert (layer.args["module"], layer.args["precision"]) == ("lm_head", "bf16")
    assert "duration_us" not in layer.args


def test_shapes_of_a_layer_stand_in_the_run_that_tells_others_than_the_run_before(assembler):
    def run(inputs):
        told = [span("layer_shapes", "mm", 10, 10, inputs=inputs, outputs="f32[4]")]
        layers = [span("layer", "mm", 10, 20, type="MatMul", implementation="x", told_us=2)]
        events = [span("program", "a", 10, 4000), *(told if inputs else []), *layers]
        found = assembler.place(events).slices[-1].args
        return found.get("inputs"), found.get("outputs")

    assert run("f32[2]") == ("f32[2]", "f32[4]")
    assert run("f32[2]") == (None, None)
    assert run("f32[3]") == ("f32[3]", "f32[4]")
    assert run("") == ("", "")  # unknown for this run: not the previous run's
    assert run("") == (None, None)


def test_layers_belong_to_the_program_that_their_thread_told_last(assembler):
    found = assembler.place(
        [
            span("program", "a", 10, 100, 1),
            span("program", "b", 20, 120, 2),
            span("layer", "of a", 10, 50, 1),
            span("layer", "of b", 20, 50, 2),
        ]
    )
    tracks = {item.name: item.track for item in found.slices}
    assert tracks["of a"] == tracks["a"] != tracks["b"] == tracks["of b"]


def test_waiting_for_the_device_is_a_slice_of_its_thread(assembler):
    (wait,) = assembler.place([span("sync", "stream", 10, 20, stream=3)]).slices
    assert (wait.name, wait.track.name) == ("synchronize stream", "main thread")


def test_a_parent_comes_before_a_child_that_begins_with_it(assembler):
    found = assembler.place([span("compile", "lower", 0, 50), span("compile", "graph", 0, 100)])
    assert [item.name for item in found.slices] == ["graph", "lower"]


def test_a_host_kernel_is_not_drawn_beside_its_op(assembler):
    assert assembler.place([span("kernel", "aten::add", 10, 1010)]).event_count == 0


def test_fallback_is_a_mark_on_its_thread(assembler):
    found = assembler.place([span("fallback", "aten::roll", 10, 1010, reason="no kernel")])
    (mark,) = found.instants
    assert (mark.name, mark.track.name) == ("aten::roll", "main thread")
    assert mark.args == {"reason": "no kernel", "duration_us": 1.0}
    assert found.slices == []


def test_counters_are_samples_and_infinite_values_are_left_out(assembler):
    events = [
        Event("counter", "memory", "allocated_bytes", BASE + 5, value=64.0),
        Event("counter", "memory", "allocated_bytes", BASE + 6, value=float("inf")),
    ]
    (sample,) = assembler.place(events).samples
    assert (sample.counter, sample.series, sample.value) == ("memory", "allocated_bytes", 64.0)


def test_backward_is_led_to_by_its_forward(assembler):
    flow = TorchFlow(1, BASE + 10, 2, BASE + 110)
    found = place_windows(
        assembler, window(op("aten::mm", 0, 50), op("MmBackward0", 100, 150, 2), flows=[flow])
    )
    assert found.flows[0].name == "forward to backward"
    assert found.flows[0].target.track.tid == 2


def test_what_began_after_the_last_step_is_left_out(assembler):
    ops = window(op("aten::mm", 0, 50), op("aten::add", 60, 70))
    alignment = ClockAlignment(0, 0, 1)
    found = assembler.place_windows([ops], alignment, own_thread_id=None, until_ns=BASE + 55)
    assert [item.name for item in found.slices] == ["aten::mm"]


def test_gaps_between_and_after_windows_are_marked_with_their_reason(assembler):
    windows = [window(end=100, end_reason="x"), window(start=300, end=400, end_reason="y")]
    gaps = assembler.place_gaps(windows, BASE + 1000).slices
    assert [(gap.name, gap.start_ns - BASE, gap.end_ns - BASE) for gap in gaps] == [
        ("ops not recorded: x", 100, 300),
        ("ops not recorded: y", 400, 1000),
    ]


def test_end_of_the_recording_is_no_gap(assembler):
    assert assembler.place_gaps([window(end=999)], BASE + 1000).slices == []


def test_own_python_calls_are_left_out(assembler):
    found = place_windows(
        assembler,
        window(
            op("npu_profiler/cli.py(40): main", 0, 100, category="python_function"),
            op("npu_profiler/commands/trace.py(30): main", 1, 99, category="python_function"),
            op("train.py(3): step", 10, 20, category="python_function"),
        ),
    )
    assert [item.name for item in found.slices] == ["train.py(3): step"]


def test_own_thread_is_left_out(assembler):
    ops = window(op("aten::mm", 0, 10, 7), op("aten::mm", 20, 30))
    found = place_windows(assembler, ops, own_thread_id=7)
    assert [item.start_ns - BASE for item in found.slices] == [20]


def test_work_of_a_kernel_program_stands_on_the_row_of_its_thread(assembler):
    found = assembler.place([span("worker", "Linear", 10, 20, 7, wait_us=0.5)])
    (work,) = found.slices
    assert (work.track.name, work.name, work.args) == ("thread 7", "Linear", {"wait_us": 0.5})

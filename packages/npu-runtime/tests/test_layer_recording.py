import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops

import npu_runtime
from npu_runtime import layer_recording, observe

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def heard():
    """Events of layers and programs while the test runs."""
    events = []

    def hear(new):
        events.extend(event for event in new if event.category in ("layer", "program"))

    observe.add_listener(hear)
    yield events
    observe.remove_listener(hear)


@pytest.fixture
def recording():
    yield layer_recording.start
    layer_recording.stop()


@pytest.fixture
def load(save_model, scale_model):
    # Saved once: OpenVINO refuses a blob when its model's file has another time, in whole seconds.
    path = save_model(scale_model)
    return lambda **options: npu_runtime.load_program(path, name="scale", options=F32, **options)


@pytest.fixture
def slow_model():
    """One product of 512 x 512 numbers and a ReLU: long enough for layers in microseconds."""
    x = ops.parameter([512, 512], np.float32, name="x")
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    product = ops.matmul(x, ops.constant(weight), False, False)
    return ov.Model([ops.relu(product)], [x], "slow")


X = [torch.ones(2, 3), torch.ones(2, 3)]


def runs_with_layers(events):
    """For each run whether layers came after it."""
    observe.flush()
    found = []
    for event in events:
        if event.category == "program":
            found.append(False)
        else:
            found[-1] = True
    return found


def test_programs_loaded_meanwhile_record_their_layers(load, recording):
    recording(first=1, every=0)
    program = load()
    program.run(X)
    assert program.layers()
    assert program.get_property("PERF_COUNT") == "YES"


def test_programs_loaded_otherwise_do_not(load):
    assert load().get_property("PERF_COUNT") == "NO"


def test_a_blob_is_neither_used_nor_left_by_a_program_that_records_layers(
    load, recording, tmp_path
):
    blobs = tmp_path / "blobs"
    load(cache_dir=blobs)
    before = sorted(blobs.iterdir())
    assert load(cache_dir=blobs).loaded_from_cache
    recording(first=1, every=0)
    program = load(cache_dir=blobs)
    assert not program.loaded_from_cache
    assert sorted(blobs.iterdir()) == before
    layer_recording.stop()
    assert load(cache_dir=blobs).loaded_from_cache
    assert load(cache_dir=blobs).get_property("PERF_COUNT") == "NO"


def test_the_first_runs_and_every_kth_after_them_tell(save_model, slow_model, recording, heard):
    recording(first=2, every=3)
    program = npu_runtime.load_program(save_model(slow_model), name="slow", options=F32)
    x = [torch.ones(*port.shape) for port in program.inputs]
    for _ in range(9):
        program.run(x)
    assert runs_with_layers(heard) == [True, True, False, False, True, False, False, True, False]


def test_layers_lie_in_their_run_one_after_the_other(save_model, slow_model, recording, heard):
    recording(first=1, every=0)
    program = npu_runtime.load_program(save_model(slow_model), name="slow", options=F32)
    program.run([torch.ones(*port.shape) for port in program.inputs])
    observe.flush()
    run, *layers = heard
    assert layers
    end_ns = run.start_ns
    for layer in layers:
        assert layer.start_ns == end_ns
        end_ns += layer.duration_ns
        assert {"type", "implementation", "told_us"} <= layer.args.keys()
    assert end_ns <= run.start_ns + run.duration_ns


@pytest.fixture
def heard_shapes():
    """Reported reads and writes of layers, by layer, one dict for each run."""
    runs = []

    def hear(new):
        for event in new:
            if event.category == "program":
                runs.append({})
            elif event.category == "layer_shapes":
                runs[-1][event.name] = (event.args["inputs"], event.args["outputs"])

    observe.add_listener(hear)
    yield runs
    observe.remove_listener(hear)


@pytest.fixture
def rows_model():
    """A product of (?, 512) and 512 x 512 numbers, and a ReLU."""
    x = ops.parameter([-1, 512], np.float32, name="x")
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    return ov.Model([ops.relu(ops.matmul(x, ops.constant(weight), False, False))], [x], "rows")


def test_layers_say_what_they_read_and_wrote(save_model, slow_model, recording, heard_shapes):
    recording(first=2, every=0)
    program = npu_runtime.load_program(save_model(slow_model), name="slow", options=F32)
    for _ in range(3):
        program.run([torch.ones(*port.shape) for port in program.inputs])
    observe.flush()
    first, second, third = heard_shapes
    products = [shapes for shapes in first.values() if shapes[0].count("f32[512,512]") == 2]
    assert [outputs for _, outputs in products] == ["f32[512,512]"]
    assert second == {name: first[name] for name in second}
    assert third == {}


def test_sizes_that_are_known_only_at_a_run_are_those_of_that_run(
    save_model, rows_model, recording, heard_shapes
):
    recording(first=3, every=0)
    program = npu_runtime.load_program(save_model(rows_model), name="rows", options=F32)
    for rows in (700, 300, 700):
        program.run([torch.ones(rows, 512)])
    observe.flush()
    outputs = [{output for _, output in run.values()} for run in heard_shapes]
    assert ["f32[700,512]" in run for run in outputs] == [True, False, True]
    assert "f32[300,512]" in outputs[1]


def test_sizes_that_change_in_each_run_are_not_read_in_each(save_model, recording, heard_shapes):
    # Many layers and little work: reading them takes more than a fiftieth of a run.
    x = ops.parameter([-1, 128], np.float32, name="x")
    weights = np.random.default_rng(0).standard_normal((60, 128, 128)).astype(np.float32)
    y = x
    for weight in weights:
        y = ops.softmax(ops.matmul(y, ops.constant(weight), False, False), 1)
    recording(first=20, every=0)
    path = save_model(ov.Model([y], [x], "rows"))
    program = npu_runtime.load_program(path, name="rows", options=F32)
    for rows in range(100, 120):
        program.run([torch.ones(rows, 128)])
    observe.flush()
    has_shapes = [bool(run) for run in heard_shapes]
    assert has_shapes[:4] == [True] * 4
    assert not all(has_shapes)


def test_times_of_layers_are_of_the_runs_since_they_were_told(save_model, slow_model):
    program = npu_runtime.load_program(
        save_model(slow_model), name="slow", options=F32, profiling=True
    )
    x = [torch.ones(*port.shape) for port in program.inputs]
    program.run(x)
    first = sum(layer.duration_us for layer in program.layers())
    assert first == sum(layer.duration_us for layer in program.layers())
    for _ in range(20):
        program.run(x)
    # The first run also allocates. A mean over all runs would still show that.
    assert sum(layer.duration_us for layer in program.layers()) > 0


def test_a_sessions_runs_tell_their_layers(save_model, slow_model, recording, heard):
    recording(first=1, every=0)
    program = npu_runtime.load_program(save_model(slow_model), name="slow", options=F32)
    session = program.session()
    for _ in range(2):
        session.run([torch.ones(*port.shape) for port in program.inputs])
    assert runs_with_layers(heard) == [True, False]


def test_enqueued_runs_tell_their_layers(save_model, slow_model, recording, heard):
    recording(first=2, every=0)
    program = npu_runtime.load_program(save_model(slow_model), name="slow", options=F32)
    x = [torch.ones(*port.shape).to("npu") for port in program.inputs]
    with torch.npu.stream(torch.npu.Stream()):
        for _ in range(3):
            program.run(x)
        torch.npu.current_stream().synchronize()
    assert runs_with_layers(heard) == [True, True, False]


def test_results_are_equal_with_and_without(save_model, slow_model, recording):
    path = save_model(slow_model)
    plain = npu_runtime.load_program(path, name="slow", options=F32)
    x = [torch.randn(*port.shape) for port in plain.inputs]
    recording(first=9, every=1)
    recorded = npu_runtime.load_program(path, name="slow", options=F32)
    assert torch.equal(plain.run(x)[0], recorded.run(x)[0])


@pytest.fixture
def told():
    """Programs that report origins of layers while the test runs."""
    events = []

    def hear(new):
        events.extend(event for event in new if event.category == "layer_origins")

    observe.add_listener(hear)
    yield events
    observe.remove_listener(hear)


ORIGINS = {"relu": ("layers.0", "model.py:7")}


def test_origins_are_told_at_once_and_again_to_a_later_recording(recording, told):
    recording(first=1, every=0)
    layer_recording.tell_origins("origins 1", ORIGINS)
    (event,) = told
    assert (event.kind, event.name, event.args) == ("instant", "origins 1", {"origins": ORIGINS})
    told.clear()
    recording(first=1, every=0)
    assert "origins 1" in [event.name for event in told]


def test_without_a_recording_origins_are_not_told_and_not_kept(recording, told):
    layer_recording.tell_origins("origins 2", ORIGINS)
    recording(first=1, every=0)
    assert "origins 2" not in [event.name for event in told]

import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

import npu_runtime
from npu_runtime import InputError, ProgramError, load_program
from npu_runtime.errors import KindError

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def scale(save_model, scale_model):
    return load_program(save_model(scale_model), name="scale", options=F32)


def test_ports_have_names_dtypes_and_shapes(scale):
    assert [(port.name, port.dtype, port.shape) for port in scale.inputs] == [
        ("x", torch.float32, (2, 3)),
        ("y", torch.float32, (2, 3)),
    ]
    assert [port.shape for port in scale.outputs] == [(2, 3), (2, 3)]


def test_outputs_come_in_the_models_order(scale):
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    plus, twice = scale.run([x, y])
    torch.testing.assert_close(plus, x + 1)
    torch.testing.assert_close(twice, 2 * y)


def test_inputs_on_npu_give_outputs_on_npu(scale):
    x = torch.randn(2, 3)
    plus, twice = scale.run([x.to("npu"), x.to("npu")])
    assert plus.device == twice.device == torch.device("npu:0")
    torch.testing.assert_close(plus.cpu(), x + 1)


@pytest.mark.parametrize("place", ["cpu", "npu"])
def test_output_device_places_new_outputs(scale, place):
    plus, _ = scale.run([torch.zeros(2, 3), torch.zeros(2, 3)], output_device=place)
    assert plus.device.type == place
    torch.testing.assert_close(plus.cpu(), torch.ones(2, 3))


@pytest.mark.parametrize("element", ["i4", "u4"])
def test_ports_of_4_bits_are_bytes_half_as_long(save_model, element):
    wide = ops.parameter([2, 4], getattr(ov.Type, element))
    path = save_model(ov.Model([ops.convert(wide, ov.Type.f32)], [wide]))
    program = load_program(path, name="packed", options=F32)
    (port,) = program.inputs
    assert (port.dtype, port.shape) == (torch.uint8, (2, 2))
    packed = torch.tensor([[0x21, 0x43], [0x65, 0x8F]], dtype=torch.uint8)
    signed = {"i4": (-1, -8), "u4": (15, 8)}[element]
    (got,) = program.run([packed])
    assert got.tolist() == [[1, 2, 3, 4], [5, 6, *signed]]


def test_ports_of_4_bits_have_an_even_last_dimension(save_model):
    odd = ops.parameter([2, 3], ov.Type.i4)
    path = save_model(ov.Model([ops.convert(odd, ov.Type.f32)], [odd]))
    with pytest.raises(ProgramError, match="elements of 4 bits") as caught:
        load_program(path, name="odd", options=F32)
    assert caught.value.code == "program-load"


def test_outputs_of_two_runs_share_no_memory(scale):
    zero, one = torch.zeros(2, 3), torch.ones(2, 3)
    first, _ = scale.run([zero, zero])
    second, _ = scale.run([one, one])
    torch.testing.assert_close(first, torch.ones(2, 3))
    torch.testing.assert_close(second, torch.full((2, 3), 2.0))


def test_a_given_output_is_written_in_place(scale):
    given = torch.full((2, 3), 7.0)
    version = given._version
    results = scale.run([torch.zeros(2, 3), torch.zeros(2, 3)], outputs=[given, None])
    assert results[0] is given
    torch.testing.assert_close(given, torch.ones(2, 3))
    assert given._version > version


def test_a_rebound_request_reads_the_new_memory(scale):
    for value in range(20):
        x = torch.full((2, 3), float(value))
        torch.testing.assert_close(scale.run([x, x])[0], x + 1)


@pytest.mark.parametrize("rows", [1, 5, 0, 2])
def test_dynamic_outputs_take_the_runs_shape(save_model, dynamic_model, rows):
    program = load_program(save_model(dynamic_model), name="dynamic", options=F32)
    assert program.outputs[0].shape == (-1, 4)
    x = torch.randn(rows, 4)
    (result,) = program.run([x])
    torch.testing.assert_close(result, 3 * x)


@pytest.mark.parametrize(
    "bad, said",
    [
        (torch.zeros(2, 4), r"needs Float \(2, 3\), got Float \(2, 4\)"),
        (torch.zeros(2, 3, dtype=torch.float64), r"got Double \(2, 3\)"),
        (torch.zeros(3, 2).t(), "contiguous"),
        (torch.zeros(2, 3, device="meta"), "got one on meta"),
    ],
)
def test_an_input_that_does_not_fit_is_named(scale, bad, said):
    with pytest.raises(InputError, match=said) as caught:
        scale.run([torch.zeros(2, 3), bad])
    assert caught.value.code == "program-input"
    assert "input 1 (y)" in str(caught.value)
    torch.testing.assert_close(
        scale.run([torch.zeros(2, 3)] * 2)[0], torch.ones(2, 3)
    )  # and the program still works


def test_the_number_of_inputs_is_checked(scale):
    with pytest.raises(InputError, match="takes 2 inputs, got 1"):
        scale.run([torch.zeros(2, 3)])


def test_a_given_output_of_the_wrong_shape_is_named(scale):
    with pytest.raises(InputError, match="output 0"):
        scale.run([torch.zeros(2, 3)] * 2, outputs=[torch.zeros(3, 3), None])


def test_output_device_takes_npu_and_cpu_alone(scale):
    with pytest.raises(InputError, match="got 'meta'"):
        scale.run([torch.zeros(2, 3)] * 2, output_device="meta")


def test_a_model_in_memory_keeps_its_weights_alive(save_model, scale_model):
    path = save_model(scale_model)
    weights = bytearray(path.with_suffix(".bin").read_bytes())
    program = load_program(path.read_bytes(), weights, name="memory", options=F32)
    del weights
    gc.collect()
    filler = [bytearray(64) for _ in range(1000)]
    torch.testing.assert_close(program.run([torch.zeros(2, 3)] * 2)[0], torch.ones(2, 3))
    assert len(filler) == 1000


def test_a_session_keeps_its_variables_and_reset_clears_them(save_model, counter_model):
    program = load_program(save_model(counter_model), name="counter", options=F32)
    first, second = program.session(), program.session()
    step = torch.tensor([1.0, 2.0])
    first.run([step])
    torch.testing.assert_close(first.run([step])[0], 2 * step)
    torch.testing.assert_close(second.run([step])[0], step)
    first.reset()
    torch.testing.assert_close(first.run([step])[0], step)


def test_a_session_outlives_the_name_of_its_program(save_model, counter_model):
    session = load_program(save_model(counter_model), name="counter", options=F32).session()
    gc.collect()
    torch.testing.assert_close(session.run([torch.ones(2)])[0], torch.ones(2))


def test_the_second_load_comes_from_the_cache(save_model, scale_model, tmp_path: Path):
    path = save_model(scale_model)
    cache = tmp_path / "cache"
    cold = load_program(path, name="cold", options=F32, cache_dir=cache)
    warm = load_program(path, name="warm", options=F32, cache_dir=cache)
    assert not cold.loaded_from_cache
    assert warm.loaded_from_cache
    torch.testing.assert_close(warm.run([torch.zeros(2, 3)] * 2)[0], torch.ones(2, 3))


def test_threads_share_a_program(save_model, dynamic_model):
    program = load_program(save_model(dynamic_model), name="dynamic", options=F32)
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for rows in range(1, 60):
            x = torch.randn(rows, 4, generator=generator)
            if not torch.equal(program.run([x])[0], 3 * x):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_precision_must_be_chosen(save_model, scale_model):
    with pytest.raises(InputError, match="INFERENCE_PRECISION_HINT") as caught:
        load_program(save_model(scale_model), name="scale", options={})
    assert caught.value.code == "program-load-input"


@pytest.mark.parametrize("given", [{"options": np.ones((4, 4))}, {"weights": [1]}, {"name": 3}])
def test_an_argument_of_another_kind_is_refused(given):
    (name,) = given
    with pytest.raises(KindError, match=f"load_program: `{name}` must be") as caught:
        load_program(b"<net/>", **{"name": "kinds", "options": F32, **given})
    assert caught.value.code == "argument-kind"


@pytest.mark.parametrize("model", [b"", "no/such/file.xml"])
def test_a_model_that_is_not_there_is_refused(model):
    with pytest.raises(InputError) as caught:
        load_program(model, name="absent", options=F32)
    assert caught.value.code == "program-load-input"


@pytest.mark.parametrize("text", [b"<net", b"not a model at all", b"<?xml version='1.0'?><net/>"])
def test_a_model_that_openvino_refuses_names_the_call(text):
    with pytest.raises(ProgramError, match="ov_core_read_model_from_memory_buffer") as caught:
        load_program(text, name="broken", options=F32)
    assert caught.value.code == "program-load"
    assert "\n" not in str(caught.value)


def test_weights_that_are_too_short_are_refused(save_model, scale_model):
    path = save_model(scale_model)
    with pytest.raises(ProgramError):
        load_program(path.read_bytes(), b"1234", name="short", options=F32)


def test_an_unknown_option_is_an_error(save_model, scale_model):
    with pytest.raises(ProgramError, match="NO_SUCH_OPTION"):
        load_program(save_model(scale_model), name="scale", options=F32 | {"NO_SUCH_OPTION": "1"})


def test_an_unknown_property_is_empty(scale):
    assert scale.get_property("NO_SUCH_PROPERTY") == ""
    assert scale.get_property("INFERENCE_PRECISION_HINT") == "f32"


def test_a_device_index_that_does_not_exist_is_refused(save_model, scale_model):
    with pytest.raises(npu_runtime.DeviceError, match="index 9") as caught:
        load_program(save_model(scale_model), name="scale", options=F32, device_index=9)
    assert caught.value.code == "device-index"


def test_a_profiled_program_lists_the_layers_of_its_latest_run(save_model, scale_model):
    program = load_program(save_model(scale_model), name="scale", options=F32, profiling=True)
    assert program.layers() == ()
    program.run([torch.randn(2, 3), torch.randn(2, 3)])
    layers = program.layers()
    assert {layer.name for layer in layers if layer.name and layer.type}
    assert all(layer.duration_us >= 0 for layer in layers)


def test_without_profiling_no_layers_are_listed(scale):
    scale.run([torch.randn(2, 3), torch.randn(2, 3)])
    assert scale.layers() == ()


def test_inputs_that_are_no_tensors(scale):
    with pytest.raises(KindError, match="`inputs` must be a sequence of tensors") as caught:
        scale.run([1, 2])
    assert caught.value.code == "argument-kind"


def test_output_device_that_is_no_name_of_one(scale):
    with pytest.raises(InputError, match="got 'a=b'") as caught:
        scale.run([torch.ones(2)], output_device="a=b")
    assert caught.value.code == "program-input"


def test_property_of_a_name_that_none_has(scale):
    assert scale.get_property("\ud800") == ""


EXPORT = """
import sys
import openvino
compiled = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
open(sys.argv[2], "wb").write(compiled.export_model().getvalue())
"""


@pytest.fixture
def blob(save_model, scale_model, tmp_path):
    """The result of the device's compiler for a model: here the CPU plugin's."""
    path = tmp_path / "scale.blob"
    model = str(save_model(scale_model))
    subprocess.run([sys.executable, "-c", EXPORT, model, str(path)], check=True)
    return path


def test_a_blob_is_imported_and_not_compiled(blob):
    program = load_program(blob, name="scale", options=F32)
    assert program.loaded_from_cache
    plus, twice = program.run([torch.zeros(2, 3), torch.ones(2, 3)])
    torch.testing.assert_close(plus, torch.ones(2, 3))
    torch.testing.assert_close(twice, torch.full((2, 3), 2.0))


@pytest.mark.parametrize("content", [b"", b"\x7fELF of another device" * 9])
def test_a_blob_that_the_device_does_not_take_is_an_error(blob, content):
    blob.write_bytes(content)
    with pytest.raises(ProgramError, match="program-load"):
        load_program(blob, name="scale", options=F32)

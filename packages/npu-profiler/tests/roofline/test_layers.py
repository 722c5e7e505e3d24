import pytest

from npu_profiler.errors import TraceError
from npu_profiler.reading import load_trace
from npu_profiler.reports.roofline import by_layer
from npu_profiler.roofline.layers import collect_layers, find_roofs, sum_roofs
from npu_profiler.roofline.peaks import Peaks
from npu_profiler.trace_format.timeline import Slice, Track

STEPS = Track(1, 1, "prefill and decode", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")
# 1 GB/s is a byte for each ns, and 2 GFLOP/s two operations.
PEAKS = Peaks("a device", 1e9, {"f32": 2e9})
PRODUCT = {"inputs": "f32[10,100] f32[10,100]", "outputs": "f32[10,10]"}


def program(start, end, name="net"):
    return Slice(PROGRAMS, "program", name, start, end - start)


def layer(start, us, name="mm", kind="FullyConnected", precision="f32", **args):
    told = {"type": kind, "precision": precision, "duration_us": us}
    return Slice(PROGRAMS, "layer", name, start, us * 1000, {**told, **args})


def roofs(path):
    return find_roofs(collect_layers(load_trace(path)), PEAKS)


def test_a_layer_is_under_the_higher_of_its_two_limits(write_trace):
    (found,) = roofs(write_trace(slices=[program(0, 50_000), layer(0, 40, **PRODUCT)]))
    assert (found.flops, found.size_bytes) == (20_000, 8_400)
    assert (found.compute_ns, found.memory_ns) == (10_000, 8_400)
    assert (found.bound, found.share) == ("compute", 0.25)


def test_a_run_that_repeats_no_shapes_has_those_of_the_run_before(write_trace):
    (found,) = roofs(
        write_trace(
            slices=[
                program(0, 50_000),
                layer(0, 40, **PRODUCT),
                program(60_000, 90_000),
                layer(60_000, 20),
                program(100_000, 190_000),
                layer(100_000, 10),
            ]
        )
    )
    assert found.layer.flops == [20_000] * 3
    assert found.time_ns == 20_000  # the median: the first run is slower than those after it


def test_a_run_whose_shapes_are_not_known_does_not_take_older_ones(write_trace):
    (found,) = roofs(
        write_trace(
            slices=[
                program(0, 50_000),
                layer(0, 40, **PRODUCT),
                program(60_000, 90_000),
                layer(60_000, 20, inputs="", outputs=""),
            ]
        )
    )
    assert found.layer.flops == [20_000, None]
    assert found.flops == 20_000


def test_prefill_and_decode_are_not_mixed(write_trace):
    found = roofs(
        write_trace(
            slices=[
                Slice(STEPS, "prefill", "prefill 10 tokens", 0, 55_000),
                Slice(STEPS, "decode", "decode 1 tokens", 60_000, 40_000),
                program(0, 50_000),
                layer(0, 40, **PRODUCT),
                program(60_000, 90_000),
                layer(60_000, 20, inputs="f32[1,100] f32[10,100]", outputs="f32[1,10]"),
            ]
        )
    )
    assert [(roof.layer.step, roof.flops) for roof in found] == [
        ("prefill", 20_000),
        ("decode", 2_000),
    ]


def test_layers_of_unknown_type_are_in_the_time_and_not_in_the_share(write_trace):
    found = roofs(
        write_trace(
            slices=[
                program(0, 90_000),
                layer(0, 40, **PRODUCT),
                layer(40_000, 30, "x", "Subgraph", **PRODUCT),
            ]
        )
    )
    total = sum_roofs(found)
    assert [roof.bound for roof in found] == ["compute", "unknown"]
    assert (total.time_ns, total.roofed_ns, total.share) == (70_000, 40_000, 0.25)


def test_a_precision_without_a_peak_has_no_roof(write_trace):
    path = write_trace(slices=[program(0, 50_000), layer(0, 40, precision="i8", **PRODUCT)])
    (found,) = roofs(path)
    assert found.layer.precision == "f32"  # numbers are floating-point, whatever the kernel's name
    integers = {"inputs": "u8[10,100] i8[10,100]", "outputs": "f32[10,10]"}
    path = write_trace(slices=[program(0, 50_000), layer(0, 40, precision="i8", **integers)])
    (found,) = roofs(path)
    assert (found.layer.precision, found.flops, found.bound) == ("i8", 20_000, "unknown")


@pytest.mark.parametrize(
    "slices, code",
    [
        ([program(0, 10)], "trace-no-layers"),
        ([program(0, 50_000), layer(0, 40)], "trace-no-shapes"),
    ],
)
def test_a_trace_without_layers_or_shapes_says_so(write_trace, slices, code):
    with pytest.raises(TraceError, match="must have") as raised:
        roofs(write_trace(slices=slices))
    assert raised.value.code == code


def test_a_layer_knows_the_module_that_it_comes_from(write_trace):
    told = roofs(
        write_trace(
            slices=[
                program(0, 90_000),
                layer(0, 40, name="linear_1", module="layers.0.gate_proj", **PRODUCT),
                layer(40_000, 20, name="linear_2", **PRODUCT),
            ]
        )
    )
    assert [found.layer.module for found in told] == ["layers.0.gate_proj", ""]
    table = by_layer(told)
    assert [column.key for column in table.columns][:2] == ["module", "layer"]
    assert [row[:2] for row in table.rows] == [("layers.0.gate_proj", "linear_1"), ("", "linear_2")]
    assert by_layer(told[1:]).columns[0].key == "layer"


def test_products_of_a_kernel_program_have_a_roof_in_the_precision_of_their_weights(write_trace):
    shapes = {"inputs": "f32[2,8] u4[8,8]", "outputs": "f32[2,8]"}
    told = roofs(
        write_trace(
            slices=[
                program(0, 90_000),
                layer(0, 40, "Linear a.b", "Linear", "u4", module="a.b", **shapes),
            ]
        )
    )
    (found,) = told
    assert (found.layer.precision, found.flops, found.size_bytes) == ("u4", 256, 64 + 32 + 64)
    assert (found.compute_ns, found.memory_ns) == (None, 160)
    assert by_layer(told).rows[0][:2] == ("a.b", "Linear")

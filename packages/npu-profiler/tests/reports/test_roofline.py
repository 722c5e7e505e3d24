from xml.etree import ElementTree

from npu_profiler.reports.roofline import draw_roofline
from npu_profiler.roofline.layers import LayerRuns, Roof
from npu_profiler.roofline.peaks import Peaks

SVG = "{http://www.w3.org/2000/svg}"


def roof(kind, flops, size_bytes, time_ns):
    layer = LayerRuns("net", "", f"a {kind} <1>", kind, "f32", [time_ns], [flops], [size_bytes])
    compute_ns = None if flops is None else flops / 100
    return Roof(layer, time_ns, flops, size_bytes, compute_ns, size_bytes / 10)


def words(root):
    return ["".join(word.itertext()).strip() for word in root.iter(f"{SVG}text")]


def test_a_roofline_has_a_dot_for_each_layer_with_operations_and_counts_the_others():
    layers = [roof("FullyConnected", 1e6, 1e4, 2e4), roof("Subgraph", None, 1e4, 1e4)]
    drawn = draw_roofline(layers, Peaks("x", 1e10, {"f32": 1e11}), title="a < b")
    root = ElementTree.fromstring(drawn.svg())
    assert [title.text for title in root.iter(f"{SVG}title")] == [
        "a < b",
        "a FullyConnected <1> (FullyConnected) : 0.020 ms, 50% of the roof, bound by compute",
    ]
    shown = words(root)
    assert {"f32 100 GFLOP/s", "memory 10.0 GB/s", "FullyConnected", "100"} <= set(shown)
    assert any(word.startswith("not drawn: 1 layers") and "33.3%" in word for word in shown)


def test_a_dot_lies_at_its_layers_intensity_and_speed():
    drawn = draw_roofline([roof("A", 1e6, 1e4, 2e4)], Peaks("x", 1e10, {}), title="t")
    (axes,) = drawn.figure.axes
    (dot,) = [line for line in axes.lines if line.get_gid() == "hint-0"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (100.0, 50.0)
    assert axes.get_xlim() == (1, 100)


def test_kinds_beyond_the_colours_share_one():
    layers = [roof(f"kind {at}", 1e6, 1e4, 2e4 - at) for at in range(10)]
    drawn = draw_roofline(layers, Peaks("x", 1e10, {"f32": 1e11}), title="t")
    shown = words(ElementTree.fromstring(drawn.svg()))
    assert "3 others" in shown
    assert "kind 6" in shown
    assert "kind 7" not in shown


def test_roofs_of_the_same_height_have_words_apart():
    peaks = Peaks("x", 1e10, {"bf16": 1e11, "f16": 1e11})
    drawn = draw_roofline([roof("A", 1e6, 1e4, 2e4)], peaks, title="t")
    places = [text.xy[1] for text in drawn.figure.axes[0].texts if "GFLOP/s" in text.get_text()]
    assert places[0] - places[1] > 0.03


def test_a_roofline_of_nothing_with_operations_is_still_a_picture():
    drawn = draw_roofline([roof("Reorder", 0, 10, 10)], Peaks("x", 1e10, {}), title="t")
    assert ElementTree.fromstring(drawn.svg()).tag == f"{SVG}svg"

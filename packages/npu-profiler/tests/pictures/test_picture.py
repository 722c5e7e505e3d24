import importlib.util
import struct
from xml.etree import ElementTree

import pytest

from npu_profiler.errors import TraceError
from npu_profiler.pictures.bars import Panel, draw_bars
from npu_profiler.pictures.picture import Picture, check_target
from npu_profiler.pictures.roof import draw_roofline
from npu_profiler.roofline.layers import LayerRuns, Roof
from npu_profiler.roofline.peaks import Peaks

SVG = "{http://www.w3.org/2000/svg}"


def roof(kind, flops, size_bytes, time_ns):
    layer = LayerRuns("net", "", f"a {kind} <1>", kind, "f32", [time_ns], [flops], [size_bytes])
    compute_ns = None if flops is None else flops / 100
    return Roof(layer, time_ns, flops, size_bytes, compute_ns, size_bytes / 10)


def test_a_roofline_has_a_dot_for_each_layer_with_operations_and_counts_the_others():
    layers = [roof("FullyConnected", 1e6, 1e4, 2e4), roof("Subgraph", None, 1e4, 1e4)]
    drawn = draw_roofline(layers, Peaks("x", 1e10, {"f32": 1e11}), title="a < b")
    root = ElementTree.fromstring(drawn.svg())
    assert root.find(f"{SVG}title").text == "a < b"
    dots = [dot.find(f"{SVG}title") for dot in root.iter(f"{SVG}circle")]
    assert [title.text for title in dots if title is not None] == [
        "a FullyConnected <1> (FullyConnected) : 0.020 ms, 50% of the roof, bound by compute"
    ]
    words = [word.text for word in root.iter(f"{SVG}text")]
    assert "f32 100 GFLOP/s" in words
    assert any(word.startswith("not drawn: 1 layers") and "33.3%" in word for word in words)


def test_a_roofline_of_nothing_with_operations_is_still_a_picture():
    drawn = draw_roofline([roof("Reorder", 0, 10, 10)], Peaks("x", 1e10, {}), title="t")
    assert ElementTree.fromstring(drawn.svg()).tag == f"{SVG}svg"


def test_bars_are_as_long_as_their_values():
    drawn = draw_bars([Panel("speed", {"a": {"x": 2.0, "y": 1.0}})], title="t")
    first, second = ElementTree.fromstring(drawn.svg()).iter(f"{SVG}rect")
    assert float(first.get("width")) == pytest.approx(2 * float(second.get("width")))


def test_a_page_holds_the_picture(tmp_path):
    picture = Picture(10, 10, "t")
    picture.line([(0, 0), (5, 5)], is_dashed=True)
    picture.write(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert picture.svg() in page


def test_a_png_has_two_pixels_for_a_unit(tmp_path):
    picture = Picture(30, 20, "t")
    picture.box(1, 1, 5, 5, "#3f51b5")
    picture.dot(9, 9, 2, "#3f51b5")
    picture.line([(0, 0), (20, 20)], is_dashed=True)
    picture.word(2, 15, "word", is_bold=True)
    picture.write(tmp_path / "x.png")
    content = (tmp_path / "x.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) == (60, 40)


def test_a_png_without_pillow_is_refused_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TraceError, match="needs Pillow") as raised:
        check_target(str(tmp_path / "x.png"))
    assert raised.value.code == "png-library"


def test_another_format_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"\.svg or \.png or \.html") as raised:
        check_target(str(tmp_path / "x.pdf"))
    assert raised.value.code == "picture-format"

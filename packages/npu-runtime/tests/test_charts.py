import struct
import subprocess
import sys
from math import inf, nan
from xml.etree import ElementTree

import pytest

from npu_command.charts import Chart, Panel, check_matplotlib, draw_bars, make_figure, own_style
from npu_runtime.errors import InputError

SVG = "{http://www.w3.org/2000/svg}"
BARS = [Panel("one", {"a": {"x": 50.0, "y": 100.0}}), Panel("two", {"": {"x": 3.0}})]


def words(chart):
    root = ElementTree.fromstring(chart.svg())
    return {"".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")}


def test_bars_are_as_long_as_their_values_and_panels_have_scales_of_their_own():
    first, second = draw_bars(BARS, title="T").figure.axes
    assert [bar.get_width() for bar in first.patches] == [50, 100]
    assert first.get_xlim() == (0, 100)
    assert second.get_xlim() == (0, 3)
    assert second.patches[0].get_facecolor() == first.patches[0].get_facecolor()
    assert first.patches[0].get_facecolor() != first.patches[1].get_facecolor()


def test_an_svg_holds_its_words_as_text():
    assert words(draw_bars(BARS, title="T & U")) == {
        "T & U", "one", "two", "a, x", "a, y", "x", "50", "100", "3",
    }  # fmt: skip


def test_a_name_with_dollars_is_no_formula():
    assert "$x^2$" in words(draw_bars([Panel("$x^2$", {"": {"$a": 1.0}})], title="t"))


@pytest.mark.parametrize(
    "panels",
    [[], [Panel("p", {})], *([Panel("p", {"g": {"x": x}})] for x in (0.0, inf, nan))],
)
def test_zero_infinity_and_nothing_are_drawn(panels):
    chart = draw_bars(panels, title="t")
    assert ElementTree.fromstring(chart.svg()).find(f"{SVG}title").text == "t"
    assert chart.png().startswith(b"\x89PNG")


def test_a_png_has_two_pixels_for_a_unit():
    with own_style():
        chart = Chart(make_figure(300, 200, "t"), "t")
    assert struct.unpack(">II", chart.png()[16:24]) == (600, 400)


def test_a_hint_is_the_title_of_its_artist():
    with own_style():
        figure = make_figure(300, 200, "t")
        figure.subplots().plot([1], [1], "o", gid="hint-0")
    root = ElementTree.fromstring(Chart(figure, "t", ["a < b"]).svg())
    (dot,) = [group for group in root.iter(f"{SVG}g") if group.get("id") == "hint-0"]
    assert dot.find(f"{SVG}title").text == "a < b"


def test_the_same_chart_is_the_same_file():
    assert draw_bars(BARS, title="t").svg() == draw_bars(BARS, title="t").svg()


def test_settings_of_a_user_are_neither_taken_nor_changed():
    from matplotlib import rcParams

    usual = draw_bars(BARS, title="t").svg()
    before = dict(rcParams)
    try:
        rcParams["font.size"] = 30
        rcParams["svg.fonttype"] = "path"
        assert draw_bars(BARS, title="t").svg() == usual
        assert (rcParams["font.size"], rcParams["svg.fonttype"]) == (30, "path")
    finally:
        rcParams.update(before)


def test_neither_pyplot_nor_a_backend_of_the_user_is_touched():
    script = """
import sys
from npu_command.charts import Panel, draw_bars
assert "matplotlib" not in sys.modules
chart = draw_bars([Panel("p", {"g": {"x": 1.0}})], title="t")
chart.svg(), chart.png()
import matplotlib
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams._get_backend_or_none() is None
assert type(chart.figure.canvas).__name__ == "FigureCanvasAgg"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_a_missing_matplotlib_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'npu-profiler\[plot\]'") as raised:
        check_matplotlib("npu-profiler", InputError)
    assert raised.value.code == "plot-library"

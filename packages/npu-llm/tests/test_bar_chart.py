import xml.etree.ElementTree as ElementTree

from npu_llm.bar_chart import Panel, draw_bars


def test_bars_are_as_long_as_their_values_and_panels_have_scales_of_their_own():
    panels = [Panel("one", {"a": {"x": 50.0, "y": 100.0}}), Panel("two", {"": {"x": 3.0}})]
    root = ElementTree.fromstring(draw_bars(panels, title="T & U"))
    spaces = "{http://www.w3.org/2000/svg}"
    widths = [float(bar.get("width")) for bar in root.iter(f"{spaces}rect")]
    assert widths[0] * 2 == widths[1] == widths[2]
    texts = [text.text for text in root.iter(f"{spaces}text")]
    assert {"T & U", "one", "two", "a, x", "a, y", "x", "50", "100", "3"} == set(texts)
    fills = [bar.get("fill") for bar in root.iter(f"{spaces}rect")]
    assert fills[0] == fills[2] != fills[1]


def test_values_of_zero_and_no_panels_are_drawn():
    assert "<rect" not in draw_bars([], title="empty")
    assert 'width="0.0"' in draw_bars([Panel("p", {"g": {"x": 0.0}})], title="zero")

import sys

import pytest

from npu_command.charts import Panel, draw_bars
from npu_profiler import cli
from npu_profiler.errors import TraceError
from npu_profiler.reports.pictures import check_target, write_picture


@pytest.fixture
def chart():
    return draw_bars([Panel("speed", {"a": {"x": 2.0}})], title="a < b")


def test_a_page_holds_the_picture(tmp_path, chart):
    write_picture(tmp_path / "x.html", chart)
    page = (tmp_path / "x.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert '<meta charset="utf-8"><title>a &lt; b</title>' in page
    assert chart.svg() in page


def test_the_suffix_says_the_format(tmp_path, chart):
    write_picture(tmp_path / "x.png", chart)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    write_picture(tmp_path / "x.svg", chart)
    assert (tmp_path / "x.svg").read_text() == chart.svg()


@pytest.mark.parametrize("name", ["x.png", "x.svg", "x.html"])
def test_a_picture_without_matplotlib_is_refused_before_the_work(
    monkeypatch, tmp_path, capsys, name
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TraceError, match=r"pip install 'npu-profiler\[plot\]'") as raised:
        check_target(str(tmp_path / name))
    assert raised.value.code == "plot-library"
    # The trace does not exist, which is found out by reading it.
    assert cli.main(["memory", "absent.json", "-o", str(tmp_path / name)]) == 2
    assert "[plot-library]" in capsys.readouterr().err


def test_another_format_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"\.svg or \.png or \.html") as raised:
        check_target(str(tmp_path / "x.pdf"))
    assert raised.value.code == "picture-format"

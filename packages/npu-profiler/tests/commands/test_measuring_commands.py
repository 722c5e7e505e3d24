import json
import webbrowser

import pytest

from npu_profiler import cli
from npu_profiler.trace_format.timeline import Slice, Track

PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")
GIVEN = ("--bandwidth", "10", "--peak", "f32=100")


def layer(name, kind, start, us):
    shapes = {"inputs": "f32[10,100] f32[10,100]", "outputs": "f32[10,10]"}
    args = {"type": kind, "precision": "f32", "duration_us": us, **shapes}
    return Slice(PROGRAMS, "layer", name, start, us * 1000, args)


@pytest.fixture
def layered(write_trace):
    slices = [
        Slice(PROGRAMS, "program", "net", 0, 90_000),
        layer("mm", "FullyConnected", 0, 40),
        layer("odd", "Subgraph", 40_000, 20),
    ]
    return str(write_trace(slices=slices))


def test_roofline_shows_layers_total_and_what_is_unknown(layered, tmp_path, capsys):
    picture = tmp_path / "roof.svg"
    assert cli.main(["roofline", layered, *GIVEN, "-o", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "peaks: 10.0 GB/s, f32 100 GFLOP/s" in shown
    (row,) = [line for line in shown.splitlines() if line.strip().startswith("mm ")]
    # 8,400 bytes at 10 GB/s are 840 ns, of 40,000.
    assert row.split()[-3:] == ["2.1", "%", "memory"]
    assert "no roof is known for: Subgraph (1 layers, 0.020 ms)" in shown
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize(
    "words, code",
    [
        (["--peak", "f32"], "roofline-option"),
        (["--bandwidth", "fast"], "roofline-option"),
        (["--bandwidth", "-1"], "roofline-option"),
        ([*GIVEN, "--step", "decode"], "roofline-option"),
        ([*GIVEN, "--program", "other"], "roofline-option"),
        (["-o", "roof.pdf"], "picture-format"),
    ],
)
def test_roofline_refuses_in_one_line(layered, words, code, capsys):
    assert cli.main(["roofline", layered, *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"[{code}]" in error


def test_matmul_prints_writes_and_draws(tmp_path, capsys):
    target, picture = tmp_path / "m.json", tmp_path / "m.html"
    words = ["--sizes", "8,4x2x3", "--dtypes", "float32", "--device", "cpu", "--seconds", "0.01"]
    assert cli.main(["matmul", *words, "--json", str(target), "--plot", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "8x8x8" in shown
    assert "4x2x3" in shown
    first, _ = json.loads(target.read_text())["records"]
    assert (first["sizes"], first["flops"], first["mode"]) == ([8, 8, 8], 1024, "eager")
    assert "<svg" in picture.read_text()


def test_mlp_runs(capsys):
    words = ["--sizes", "2x8x16", "--dtypes", "float32", "--device", "cpu", "--seconds", "0.01"]
    assert cli.main(["mlp", *words]) == 0
    assert "2x8x16" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, code",
    [
        (["--sizes", "0"], "sweep-option"),
        (["--sizes", "4x4"], "sweep-option"),
        (["--dtypes", "int3"], "sweep-option"),
        (["--modes", "fast"], "sweep-option"),
        (["--device", "cpu", "--modes", "compiled"], "sweep-option"),
        (["--device", "npu:99"], "sweep-option"),
        (["--device", "tpu"], "sweep-option"),
        (["--seconds", "0"], "sweep-option"),
        (["--json", "/no/such/folder/x.json"], "output-file"),
        (["--plot", "x.bmp"], "picture-format"),
    ],
)
def test_a_sweep_refuses_in_one_line(words, code, capsys):
    assert cli.main(["matmul", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"[{code}]" in error


def test_view_writes_a_page_and_says_where(layered, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert cli.main(["view", layered, "-o", str(page)]) == 0
    assert f"wrote {page}" in capsys.readouterr().err
    assert "<canvas" in page.read_text()


def test_view_opens_the_page_that_it_wrote(layered, tmp_path, capsys, monkeypatch):
    page, asked = tmp_path / "page.html", []
    monkeypatch.setattr(webbrowser, "open", asked.append)
    assert cli.main(["view", layered, "-o", str(page), "--open"]) == 0
    assert asked == [page.as_uri()]
    assert "no browser was found" in capsys.readouterr().err

from __future__ import annotations

import csv
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from npu_ops.cli import main
from npu_ops.debugging import ProcessMonitor
from npu_ops.debugging.monitor import Panel, draw_series
from npu_ops.errors import OperatorInputError

HELD = """
import time
import torch
x = torch.ones(2_000_000, device="npu")
time.sleep(0.5)
"""


def test_this_process_is_watched_with_its_device_memory(tmp_path: Path) -> None:
    with ProcessMonitor(interval_s=0.01) as monitor:
        x = torch.ones(1_000_000, device="npu")
        while len(monitor.samples) < 5:
            _ = x * 2
        held = torch.npu.memory_allocated()
    assert monitor.samples[-1].npu_allocated_bytes == held >= 4_000_000
    assert all(sample.rss_bytes > 10_000_000 for sample in monitor.samples)
    times = [sample.time_s for sample in monitor.samples]
    assert times == sorted(times)
    monitor.write_svg(tmp_path / "plot.svg")
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")


def test_a_command_and_the_device_memory_of_its_processes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, plot = tmp_path / "m.csv", tmp_path / "m.svg"
    command = [sys.executable, "-c", HELD]
    options = ["-o", str(file), "--plot", str(plot), "--interval", "0.05"]
    assert main(["monitor", *options, "--", *command]) == 0
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert max(int(row["npu_allocated_bytes"]) for row in rows) >= 8_000_000
    assert max(int(row["npu_reserved_bytes"]) for row in rows) >= 8_000_000
    assert max(float(row["cpu_percent"]) for row in rows) > 0
    words = {text.text for text in ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")}
    assert {"CPU", "resident", "reserved", "allocated"} <= words
    assert "MB of device memory in tensors" in capfd.readouterr().out


def test_a_plot_without_matplotlib_is_refused_before_the_command_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    started = tmp_path / "started"
    command = [sys.executable, "-S", "-c", f"open({str(started)!r}, 'w')"]
    options = ["-o", str(tmp_path / "m.csv"), "--plot", str(tmp_path / "m.svg")]
    assert main(["monitor", *options, "--", *command]) == 2
    said = capsys.readouterr().err
    assert "pip install 'npu-ops[plot]'" in said
    assert "[plot-library]" in said
    assert not started.exists()


def test_the_commands_exit_code_is_kept(tmp_path: Path) -> None:
    run = ["monitor", "-o", str(tmp_path / "m.csv"), "--", sys.executable, "-S", "-c"]
    assert main([*run, "raise SystemExit(4)"]) == 4
    assert main([*run, "import os; os.kill(os.getpid(), 9)"]) == 137


def test_a_command_that_does_not_start_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["monitor", "-o", str(tmp_path / "m.csv"), "--", "no-such-command"])
    assert end.value.code == 2
    assert "no-such-command does not start" in capsys.readouterr().err


def test_an_interval_must_be_a_time() -> None:
    with pytest.raises(OperatorInputError, match="got 0") as caught:
        ProcessMonitor(interval_s=0)
    assert caught.value.code == "tool-option"


def test_panels_share_the_time_and_have_scales_of_their_own():
    panels = [Panel("a", {"x": [1.0, 3.0]}), Panel("b", {"y": [10.0, 0.0], "z": [5.0, 100.0]})]
    first, second = draw_series([0.0, 2.0], panels, title="t").figure.axes
    assert first.get_xlim() == second.get_xlim() == (0, 2)
    assert [list(line.get_ydata()) for line in second.lines] == [[10, 0], [5, 100]]
    assert first.get_ylim()[1] < 4 < 100 < second.get_ylim()[1]


def test_no_looks_are_drawn():
    assert draw_series([], [Panel("a", {"x": []})], title="t").svg().startswith("<svg")

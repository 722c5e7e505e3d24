import logging
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

import forked_python
from npu_ops.variants.measurements import Measurement, Records

ONE = Measurement(program_us=1.5, host_us=3.0, is_equal=True, largest_error=1e-7)


def test_a_second_process_reads_what_one_wrote(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.json"
    Records(path).add("NPU", "aten.mm 4x4xf32 4x4xf32", ONE)
    again = Records(path)
    assert again.find("NPU", "aten.mm 4x4xf32 4x4xf32") == ONE
    assert again.find("CPU", "aten.mm 4x4xf32 4x4xf32") is None
    assert again.calls("NPU") == {"aten.mm 4x4xf32 4x4xf32": ONE}


ADD = """
import pathlib, sys
from npu_ops.variants.measurements import Measurement, Records
records = Records(pathlib.Path(sys.argv[1]))
for index in range(10):
    one = Measurement(program_us=1.5, host_us=3.0, is_equal=True, largest_error=1e-7)
    records.add("NPU", f"{sys.argv[2]} {index}", one)
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    command = [sys.executable, "-c", ADD, path]
    writers = [forked_python.start([*command, name]) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(Records(path).calls("NPU")) == 20


def test_a_measurement_waits_for_whoever_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    writer = threading.Thread(target=Records(path).add, args=("NPU", "x", ONE))
    with FileLock(tmp_path / "records.lock"):
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
        assert not path.exists()
    writer.join(60)
    assert Records(path).find("NPU", "x") == ONE
    assert sorted(file.name for file in tmp_path.iterdir()) == ["records.json", "records.lock"]


@pytest.mark.parametrize("content", ["", "{", '{"format": 99}', '{"format": 1, "devices": 3}'])
def test_a_damaged_file_is_a_warning_and_is_replaced(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "records.json"
    path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert Records(path).find("NPU", "x") is None
    assert str(path) in caplog.text
    Records(path).add("NPU", "x", ONE)
    assert Records(path).find("NPU", "x") == ONE


def test_a_file_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    records = Records(blocker / "records.json")
    with caplog.at_level(logging.WARNING):
        records.add("NPU", "x", ONE)
    assert "cannot write" in caplog.text
    assert records.find("NPU", "x") == ONE


def test_a_device_can_be_forgotten(tmp_path: Path) -> None:
    records = Records(tmp_path / "records.json")
    records.add("NPU", "x", ONE)
    records.add("CPU", "x", ONE)
    assert records.forget("NPU") == 1
    assert records.find("NPU", "x") is None
    assert Records(records.path).find("CPU", "x") == ONE

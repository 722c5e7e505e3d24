import json
import os
import signal
import subprocess
import time

import pytest

JOB = """
import time, torch
print("ready", flush=True)
while True:
    torch.ones(2).sin(); time.sleep(0.005)
"""


@pytest.fixture
def job(start_forked, tmp_path):
    """A job that waits for `npu-profiler attach`."""
    (tmp_path / "job.py").write_text(JOB)
    environment = {"NPU_ATTACH": "1", "TMPDIR": str(tmp_path)}
    process = start_forked("job.py", stdout=subprocess.PIPE, **environment)
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def attach(run_python, tmp_path):
    return lambda *arguments: run_python(
        "-m", "npu_profiler", "attach", *map(str, arguments), TMPDIR=str(tmp_path)
    )


def test_running_job_is_recorded_for_some_seconds_and_goes_on(job, attach, tmp_path, check_schema):
    result = attach(job.pid, "--seconds", 1, "-o", "t.json")
    assert result.returncode == 0, result.stderr
    assert "aten::sin" in result.stderr
    document = json.loads((tmp_path / "t.json").read_text())
    check_schema(document)
    sines = [event for event in document["traceEvents"] if event["name"] == "aten::sin"]
    assert len(sines) > 10
    assert job.poll() is None


def test_recording_is_switched_on_and_off(job, attach, tmp_path):
    begun = attach(job.pid, "--start", "-o", "t.json.gz")
    assert begun.returncode == 0, begun.stderr
    again = attach(job.pid, "--seconds", 1, "-o", "u.json")
    assert (again.returncode, again.stderr.count("[trace-active]")) == (2, 1)
    assert "[attach-refused]" in again.stderr
    ended = attach(job.pid, "--stop")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "t.json.gz").exists()


def test_job_that_is_told_to_end_meanwhile_dies_as_told(job, attach, tmp_path):
    attach(job.pid, "--start", "-o", "t.json")
    time.sleep(1)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == -signal.SIGTERM
    events = json.loads((tmp_path / "t.json").read_text() + "]")
    assert "aten::sin" in [event["name"] for event in events]


def test_process_that_does_not_wait_is_named(attach):
    result = attach(os.getpid(), "--seconds", 1)
    assert result.returncode == 2
    assert str(os.getpid()) in result.stderr
    assert result.stderr.endswith("[attach-absent]\n")

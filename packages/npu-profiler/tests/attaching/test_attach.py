"""A job that records itself because a command asked, and the files by which they meet."""

import json
import os
import signal
import subprocess
import time

import pytest

from npu_profiler.attaching.attach import Mailbox, control_directory
from npu_profiler.errors import TraceError


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_directory_is_the_users_own(temporary):
    assert control_directory().stat().st_mode & 0o777 == 0o700
    assert control_directory() == temporary / f"npu-profiler-{os.getuid()}"


def test_directory_that_others_may_write_to_is_refused(temporary):
    control_directory().chmod(0o777)
    with pytest.raises(TraceError, match=r"777.*\[attach-directory\]") as caught:
        control_directory()
    assert caught.value.code == "attach-directory"


def test_request_is_taken_once(tmp_path):
    mailbox = Mailbox(tmp_path, 1)
    mailbox.ask({"seconds": 3})
    assert mailbox.take_request() == {"seconds": 3}
    assert mailbox.take_request() is None


def test_a_new_request_forgets_the_answer_before(tmp_path):
    mailbox = Mailbox(tmp_path, 1)
    mailbox.answer({"done": True})
    mailbox.ask({"seconds": 3})
    assert mailbox.state() is None


def test_job_that_died_is_not_there(tmp_path):
    mailbox = Mailbox(tmp_path, 1 << 22)
    mailbox.announce()
    assert not mailbox.is_announced()
    assert list(tmp_path.iterdir()) == []


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

import os

import pytest

from npu_profiler.attaching.control import Mailbox, control_directory
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

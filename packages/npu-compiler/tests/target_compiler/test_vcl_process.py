"""The compiler's process, with clients that do not keep to the protocol."""

from __future__ import annotations

import sys

import pytest

from npu_compiler.errors import TargetError
from npu_compiler.target_compiler import vcl_process
from npu_compiler.target_compiler.vcl_process import CompilerProcess, Limits

READY = r"print('ready\tfake\t8.4\t11', flush=True)"


def start(*lines):
    program = "\n".join(["import sys", "sys.stdin.readline()", *lines])
    command = [sys.executable, "-I", "-c", program]
    return CompilerProcess(command, "library", {}, windows_paths=False)


@pytest.fixture
def ir(tmp_path):
    (tmp_path / "ir").write_bytes(b"ir")
    return tmp_path / "ir"


@pytest.mark.parametrize(
    "lines, words",
    [
        ([r"print('error\tno such library\t2')"], "got: no such library"),
        (["print('ready')"], "must start"),
        (["sys.exit('Wine is broken')"], "exit code 1 Wine is broken"),
    ],
)
def test_client_that_does_not_start_is_an_error_in_its_words(lines, words):
    with pytest.raises(TargetError, match=words) as error:
        start(*lines)
    assert error.value.code == "target-compiler"


def test_garbage_is_a_verdict_and_ends_the_process(ir):
    process = start(READY, "sys.stdin.readline()", r"print('done\tgarbage\t1', flush=True)")
    answer = process.compile(ir, "", Limits())
    assert (answer.code, answer.is_limited) == (None, False)
    assert "garbage" in answer.ended
    assert not process.is_running
    process.close()
    assert not process.folder.exists()


def test_blob_that_cannot_be_written_is_no_verdict(ir):
    process = start(
        READY, "sys.stdin.readline()", r"print('error\tcannot write the blob\t0', flush=True)"
    )
    with pytest.raises(TargetError, match="cannot write the blob") as error:
        process.compile(ir, "", Limits())
    assert error.value.code == "target-cache"
    process.close()


def test_windows_paths_are_below_drive_z(ir):
    process = start(READY, "sys.stderr.write(sys.stdin.readline())", r"print('done\t0\t1')")
    process._windows_paths = True
    answer = process.compile(ir, "", Limits())
    assert answer.log.startswith(f"Z:{ir}".replace("/", "\\"))
    process.close()


def test_process_that_uses_no_processor_is_ended_and_no_verdict(ir, monkeypatch):
    monkeypatch.setattr(vcl_process, "_STALL_S", 0.4)
    process = start(READY, "sys.stdin.readline()", "import time", "time.sleep(60)")
    answer = process.compile(ir, "", Limits())
    assert (answer.is_deadlocked, answer.is_limited) == (True, True)
    assert not process.is_running
    process.close()


def test_process_that_computes_is_not_taken_for_a_deadlock(ir, monkeypatch):
    monkeypatch.setattr(vcl_process, "_STALL_S", 1.0)
    busy = ["import time", "until = time.monotonic() + 2", "while time.monotonic() < until: pass"]
    process = start(READY, "sys.stdin.readline()", *busy, r"print('done\t0\t1', flush=True)")
    answer = process.compile(ir, "", Limits())
    assert (answer.code, answer.is_deadlocked) == (0, False)
    process.close()

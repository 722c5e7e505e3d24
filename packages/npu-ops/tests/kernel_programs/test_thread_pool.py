"""The thread pool by itself: a program in C++, compiled for the test."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "csrc"


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_late_workers_change_no_result_and_hold_nobody_up(tmp_path):
    program = tmp_path / "uneven_workers"
    files = [HERE / "uneven_workers.cpp", SOURCES / "kernel_programs" / "thread_pool.cpp"]
    flags = ["-std=c++20", "-O1", "-pthread", f"-I{SOURCES}"]
    subprocess.run(["c++", *flags, *files, "-o", program], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr

"""The thread pool by itself: a program in C++, compiled for the test."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "csrc"


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_what_a_member_throws_reaches_the_caller_and_the_next_work_runs(tmp_path):
    program = tmp_path / "worker_failures"
    files = [HERE / "worker_failures.cpp", SOURCES / "kernel_programs" / "thread_pool.cpp"]
    flags = ["-std=c++20", "-O0", "-pthread", f"-I{SOURCES}"]
    subprocess.run(["c++", *flags, *files, "-o", program], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr

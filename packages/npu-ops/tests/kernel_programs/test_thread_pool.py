"""The thread pool by itself: a program in C++, compiled for the test."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "csrc"
PARTS = ["thread_pool", "core_placement"]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_late_workers_change_no_result_and_hold_nobody_up(tmp_path):
    program = tmp_path / "uneven_workers"
    sources = [SOURCES / "kernel_programs" / f"{name}.cpp" for name in PARTS]
    flags = ["-std=c++20", "-O1", "-pthread", f"-I{SOURCES}"]
    subprocess.run(
        ["c++", *flags, HERE / "uneven_workers.cpp", *sources, "-o", program],
        check=True,
        timeout=120,
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr

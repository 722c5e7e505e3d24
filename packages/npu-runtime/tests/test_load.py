"""Many threads on many streams compute what one thread on one stream does (load/mixed_load.py)."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked_python

PROGRAM = Path(__file__).parent / "load" / "mixed_load.py"
# Threads, and streams of each.
THREADS, STREAMS = 8, 4

# Its processes are given their driver, and so cover sim in every run.
pytestmark = [
    pytest.mark.xdist_group("load"),  # which share the serial run
    pytest.mark.driver("openvino", "its processes use both drivers already"),
]


@functools.cache
def run_load(*flags: str, **environment: str) -> dict[str, object]:
    """The digests of each thread's results."""
    done = start_load(*flags, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start_load(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked_python.run(
        [sys.executable, str(PROGRAM), f"--threads={THREADS}", *flags],
        env=os.environ | {"NPU_DRIVER": "sim", "NPU_DEVICE": "SIM"} | environment,
        timeout=800,
    )


@pytest.mark.parametrize(
    "total, seed",
    [(300, 1), pytest.param(40_000, 3, marks=pytest.mark.long)],
)
def test_threads_on_streams_give_what_the_serial_run_gives(total, seed):
    flags = (f"--operations={total}", f"--seed={seed}")
    serial = run_load(*flags, "--streams=0")
    parallel = run_load(*flags, f"--streams={STREAMS}", "--delay-us=200")
    assert parallel["digests"] == serial["digests"]
    assert len(set(serial["digests"])) == THREADS  # each seed has a separate program


def test_the_openvino_driver_gives_the_same():
    flags = ("--operations=300", "--seed=1")
    openvino = run_load(*flags, NPU_DRIVER="openvino", NPU_DEVICE="CPU")
    assert openvino["digests"] == run_load(*flags, "--streams=0")["digests"]


def test_a_wait_that_is_left_out_gives_a_wrong_result():
    flags = ("--operations=300", "--seed=1")
    right = run_load(*flags, "--streams=0")["digests"]
    wrong = run_load(*flags, "--leave-out=6")["digests"]
    assert wrong[0] != right[0]
    assert wrong[1:] == right[1:]


def test_the_sanitizer_is_content_with_all_waits():
    flags = ("--operations=300", "--seed=1")
    watched = run_load(*flags, "--delay-us=200", NPU_SANITIZER="1")
    assert watched["digests"] == run_load(*flags, "--streams=0")["digests"]


def test_the_sanitizer_names_the_wait_that_is_left_out():
    done = start_load("--operations=300", "--seed=1", "--leave-out=6", NPU_SANITIZER="1")
    assert done.returncode != 0
    assert "[stream-race]" in done.stderr
    assert done.stderr.count("in hand_over") >= 2  # both stacks

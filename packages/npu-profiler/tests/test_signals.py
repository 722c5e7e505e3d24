"""Signals of a recorded program: threads that receive none, and an end that leaves a trace."""

import signal
import threading
from pathlib import Path

import pytest

from npu_profiler.signals import signals_blocked


def test_threads_started_inside_receive_no_signal_and_ours_does_again():
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with signals_blocked():
        thread.start()
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    go.set()
    thread.join()
    assert all(blocked >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


PROLOGUE = """
import os, signal, sys, time
from npu_profiler.signals import Termination
termination = Termination(lambda: print("finished", flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_finishes_and_dies_of_the_signal(run_python, number):
    result = run_python(
        "-c",
        # A run under nohup ignores SIGHUP, and its children would inherit that.
        PROLOGUE + f"signal.signal({int(number)}, signal.SIG_DFL); termination.install()\n"
        f"try:\n    os.kill(os.getpid(), {int(number)}); time.sleep(9)\n"
        "finally:\n    print('no finally runs without us, so none with us')",
    )
    assert result.returncode == -number
    assert result.stdout == "finished\n"


def test_ignored_signal_stays_ignored(run_python):
    result = run_python(
        "-c",
        PROLOGUE + "signal.signal(signal.SIGHUP, signal.SIG_IGN); termination.install()\n"
        "os.kill(os.getpid(), signal.SIGHUP); print('alive')",
    )
    assert result.stdout == "alive\n"


def test_own_handler_of_the_program_wins(run_python):
    result = run_python(
        "-c",
        PROLOGUE + "termination.install()\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
    )
    assert (result.returncode, result.stdout) == (3, "")


def test_signal_while_finishing_waits_for_the_end(run_python):
    result = run_python(
        "-c",
        PROLOGUE + "def finish():\n"
        "    os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.1); print('complete', flush=True)\n"
        "termination = Termination(finish); termination.install(); termination.run_finish()\n"
        "print('not reached')",
    )
    assert (result.returncode, result.stdout) == (-signal.SIGTERM, "complete\n")


def test_forked_child_dies_without_finishing(run_python):
    result = run_python(
        "-c",
        PROLOGUE + "termination.install()\n"
        "child = os.fork()\n"
        "if child == 0:\n    os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)\n"
        "print(os.WTERMSIG(os.waitpid(child, 0)[1]))",
    )
    assert result.stdout == "15\n"

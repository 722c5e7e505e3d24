"""Ctrl-C in a command's process: its end, exit code, and remains."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# A command of a package for this test. It prints when the signal may come.
COMMAND = """
import sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
import npu_command
sys.argv = ["npu-made", "go"]
sys.exit(npu_command.npu_made())
"""
TABLE = """
summary = "Is made for a test."
[subcommands.go]
module = "npu_made.going"
summary = "goes"
"""
GOING = """
import sys, time, ctypes, threading
from pathlib import Path
from npu_command.command_parser import CommandParser
from npu_command.interrupt import as_exception, removed_at_interrupt

def ready():
    print("ready", flush=True)

def main(arguments):
    CommandParser(prog="npu-made go").parse_args(arguments)
{body}
    return 0
"""
BODIES = {
    "python": "ready()\n    while True: pass",
    "waiting": "ready()\n    threading.Event().wait()",
    # A native call that does not come back by itself: no line of Python runs in the main thread.
    "native": "ready()\n    ctypes.CDLL(None).pause()\n    while True: ctypes.CDLL(None).pause()",
    "swallowing": "ready()\n    while True:\n        try: time.sleep(1)\n"
    "        except BaseException: pass",
    "filling": "draft = Path('draft'); draft.mkdir(); (draft / 'part').write_text('x')\n"
    "    with removed_at_interrupt(draft):\n        ready()\n        time.sleep(60)",
}


def write_package(tmp_path, body):
    package = tmp_path / "npu_made"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "commands.toml").write_text(TABLE)
    (package / "going.py").write_text(GOING.format(body=f"    {body}"))


def start(tmp_path, body):
    write_package(tmp_path, body)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(folder=str(tmp_path))],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A run in the background ignores Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_ctrl_c_ends_a_command_wherever_it_is(tmp_path, kind):
    with start(tmp_path, BODIES[kind]) as process:
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    assert shown == b"\nnpu-made go: interrupted\n"
    assert time.monotonic() - sent < 2
    assert not (tmp_path / "draft").exists()


def test_where_it_is_asked_for_ctrl_c_is_an_exception_and_then_no_longer(tmp_path):
    body = (
        "with as_exception():\n        try:\n            ready(); time.sleep(60)\n"
        "        except KeyboardInterrupt: ready()\n    ready()\n    time.sleep(60)"
    )
    with start(tmp_path, body) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"ready\n"
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert (process.returncode, shown) == (130, b"\nnpu-made go: interrupted\n")


def test_a_program_that_ctrl_c_ended_does_what_it_registered_and_leaves(tmp_path):
    body = (
        "import atexit\n    from npu_command.exit_status import report_error\n"
        "    atexit.register(lambda: print('registered'))\n"
        "    class Slow:\n        def __del__(self, sleep=time.sleep): sleep(30)\n"
        "    sys.kept = Slow()\n"
        "    try:\n        with as_exception(): ready(); time.sleep(60)\n"
        "    except KeyboardInterrupt as error: return report_error('npu-made', error)"
    )
    with start(tmp_path, body) as process:
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, shown = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"registered\n")
    assert shown == b"\nnpu-made: interrupted\n"
    assert time.monotonic() - sent < 5


def test_an_ignored_ctrl_c_stays_ignored(tmp_path):
    body = "import os, signal; assert signal.getsignal(2) is signal.SIG_IGN; ready()"
    write_package(tmp_path, body)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(folder=str(tmp_path))],
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ready\n", b"")


def test_importing_it_leaves_signals_alone():
    code = (
        "import signal, npu_command, npu_command.interrupt, npu_command.subcommands\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

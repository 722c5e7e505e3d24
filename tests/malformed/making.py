"""Makes the calls of a batch in a process forked from this one, in a separate folder.

This process imports what all need and opens no device, so that a fork is as good as a new process
and costs no imports. A batch's process writes what each call ended with before it makes the next;
one that ends by a signal, or does not end, is gone on with behind the call that did it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
import torch

from malformed import valid
from malformed.drawing import Batch, Call
from malformed.verdict import Outcome

__all__ = ["Maker"]

_KEPT_TEXT = 4_000
_FIFO_PATIENCE_S = 10.0  # for a call that reads a pipe to which nobody writes
_CALLERS = re.compile(f"{os.sep}torch{os.sep}(nn|_dynamo){os.sep}")
_HERE = str(Path(__file__).parent)


@dataclass
class _Running:
    batch: Batch
    place: Path
    pid: int
    done: int  # calls that earlier processes of the batch made
    seen: int = 0
    since: float = 0.0
    is_told: bool = False


class Maker:
    """Makes batches, some at a time.

    Args:
        files: a folder; each batch runs in a copy of it. place: folder of the copies.
        jobs: processes at a time.
        patience_s: time of a call before it gets Ctrl-C; twice that before it is killed.
    """

    def __init__(self, files: Path, place: Path, *, jobs: int, patience_s: float) -> None:
        self._files = files
        self._place = place
        self._jobs = jobs
        self._patience_s = patience_s
        self._number = 0

    def make(self, batches: Sequence[Batch], each: Callable[[Call, Outcome, Batch], None]) -> None:
        """Makes all calls; `each` is called with every outcome."""
        waiting = list(reversed(batches))
        running: list[_Running] = []
        while waiting or running:
            while waiting and len(running) < self._jobs:
                running.append(self._start(waiting.pop(), 0))
            time.sleep(0.02)
            for one in list(running):
                ended = self._look(one)
                if ended is None:
                    continue
                running.remove(one)
                outcomes = _read(one.place)
                for call, outcome in zip(one.batch.calls[one.done :], outcomes, strict=False):
                    each(call, outcome, one.batch)
                following = one.done + len(outcomes)
                if following < len(one.batch.calls):  # a command's one, or who ended it all
                    each(one.batch.calls[following], ended, one.batch)
                    following += 1
                shutil.rmtree(one.place, ignore_errors=True)
                if following < len(one.batch.calls):
                    running.append(self._start(one.batch, following))

    def _start(self, batch: Batch, done: int) -> _Running:
        self._number += 1
        place = self._place / f"batch-{self._number}"
        shutil.copytree(self._files, place / "here", symlinks=True)
        os.mkfifo(place / "here" / "fifo")
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            _child(batch, place, done)
        return _Running(batch, place, pid, done, since=time.monotonic())

    def _look(self, one: _Running) -> Outcome | None:
        """The exit code of a process, or None while it runs."""
        ended, status, _ = os.wait4(one.pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)  # its remaining child processes
            code = os.waitstatus_to_exitcode(status)
            shown = (one.place / "stderr").read_bytes().decode(errors="replace")[-_KEPT_TEXT:]
            if code < 0:
                kind = "hang" if one.is_told and -code == signal.SIGKILL else "signal"
                return Outcome(kind, text=shown, code=code)
            if one.is_told and code == 130:
                code = 0  # Ctrl-C ended a long task
            return Outcome("exit", text=shown, code=code)
        count = len(_read(one.place)) if one.batch.calls[0].entry else 0
        now = time.monotonic()
        if count != one.seen:
            one.seen, one.since, one.is_told = count, now, False
        call = one.batch.calls[min(one.done + count, len(one.batch.calls) - 1)]
        patience_s = self._patience_s
        if _reads_fifo(call):
            patience_s = min(patience_s, _FIFO_PATIENCE_S)
        if now - one.since > 2 * patience_s:
            os.kill(one.pid, signal.SIGKILL)
        elif now - one.since > patience_s and not one.is_told:
            one.is_told = True
            os.kill(one.pid, signal.SIGINT)
        return None


def _read(place: Path) -> list[Outcome]:
    journal = place / "journal"
    if not journal.exists():
        return []
    lines = journal.read_text().split("\n")[:-1]
    return [Outcome(**{**json.loads(line), "error": tuple(json.loads(line)["error"])})
            for line in lines]  # fmt: skip


def _child(batch: Batch, place: Path, done: int) -> None:
    """Never returns."""
    code = 70
    try:
        os.setsid()
        here = place / "here"
        os.chdir(here)
        home = place / "home"
        shutil.copytree(here.parent.parent / "cache", home / "cache")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NPU_", "OP_"))}
        os.environ.clear()
        os.environ.update(kept, HOME=str(home), XDG_CACHE_HOME=str(home / "cache"))
        os.environ.update(TMPDIR=str(home), HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
        os.environ.update(OMP_WAIT_POLICY="passive", **dict(batch.environment))
        error = os.open(place / "stderr", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(error, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.enable(all_threads=False)
        first = batch.calls[done]
        if first.entry is None:
            code = _command(first, place)
        else:
            _calls(batch.calls[done:], place)
            code = 0
    except BaseException:  # noqa: BLE001  # printed, by a process that ends
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


def _command(call: Call, place: Path) -> int:
    if call.stdin == "closed":
        os.close(0)
        sys.stdin = None  # type: ignore[assignment]
    else:
        (place / "stdin").write_bytes(b"\xff\0garbage\n" if call.stdin == "garbage" else b"")
        os.dup2(os.open(place / "stdin", os.O_RDONLY), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # for the process's life
    if call.stdout == "closed":
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]
    else:
        target = "/dev/full" if call.stdout == "full" else place / "stdout"
        os.dup2(os.open(target, os.O_CREAT | os.O_WRONLY), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    _, _, name = call.subject.partition(" ")
    sys.argv = [call.package, name, *call.words]
    from npu_command.subcommands import run

    try:
        code = run(call.package.replace("-", "_"))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001  # as Python ends a program
        traceback.print_exc()
        return 1


def _calls(calls: Sequence[Call], place: Path) -> None:
    out = os.open(place / "stdout", os.O_CREAT | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    here = Path.cwd()
    with (place / "journal").open("a") as journal:
        for call in calls:
            outcome = _make(call)
            with contextlib.suppress(OSError):
                os.chdir(here)
            journal.write(json.dumps(asdict(outcome)) + "\n")
            journal.flush()


def _make(call: Call) -> Outcome:
    names = {"valid": valid, "torch": torch, "numpy": numpy, "pathlib": pathlib}
    entry = call.entry
    assert entry is not None
    try:
        arguments = [eval(text, names) for text in call.arguments]  # drawn here
        named = {name: eval(text, names) for name, text in call.named}
        if entry.method and not entry.is_static:
            owner = valid.instance(entry.module, entry.name)
        elif entry.module == "torch.ops.npu":
            owner = torch.ops.npu
        else:
            owner = getattr(importlib.import_module(entry.module), entry.name)
            owner = owner if entry.method else importlib.import_module(entry.module)
        function = getattr(owner, entry.method or entry.name)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # of making values
        return Outcome("skipped", (type(error).__name__,), str(error)[:300])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*arguments, **named)
            if hasattr(result, "__enter__") and hasattr(result, "gen"):
                with result:  # a context manager of a generator has done nothing yet
                    pass
            if call.entry.method == "start":  # or it would see the calls that follow
                getattr(owner, "stop", getattr(owner, "finish", None))()
            return Outcome("ok")
        except KeyboardInterrupt as error:
            kind = "waited" if _reads_fifo(call) else "slow"
            return Outcome(kind, text=_stack(error))
        except BaseException as error:  # noqa: BLE001  # it is judged
            return _raised(error)


def _reads_fifo(call: Call) -> bool:
    """Whether a call is given the pipe to which nobody writes."""
    return "'fifo'" in str(call)


def _raised(error: BaseException) -> Outcome:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/npu_" in frame.filename]
    place = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else ""
    last = frames[-1].filename
    # Behind the last frame of ours: a module or a callable that the call was given, or Dynamo that
    # traces it.
    is_callers = any(isinstance(one, valid.CallersError) for one in _chain(error)) or (
        bool(ours) and last != ours[-1].filename and bool(_CALLERS.search(last))
    )
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001
        text = f"its text: {second!r}"
    code = getattr(error, "code", None)
    return Outcome(
        "raised",
        tuple(one.__name__ for one in type(error).__mro__[:-2]),
        _shortened(text).encode("utf-8", "backslashreplace").decode(),
        code if isinstance(code, str) else None,
        place,
        is_callers,
    )


def _shortened(text: str) -> str:
    half = _KEPT_TEXT // 2
    return text if len(text) <= _KEPT_TEXT else f"{text[:half]} ... {text[-half:]}"


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _stack(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-6:])

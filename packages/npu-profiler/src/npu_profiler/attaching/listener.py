"""The job's side of `npu-profiler attach`: a thread that waits for a request and records.

npu-runtime installs it if NPU_ATTACH=1 is set, through an entry point of the group
`npu_runtime.observers`.
"""

import atexit
import os
import threading
import time
from pathlib import Path
from typing import Any

from npu_profiler.attaching.attach import Mailbox, control_directory
from npu_profiler.errors import TraceError
from npu_profiler.recording.recorder import Recording, TraceOptions
from npu_profiler.signals import signals_blocked

__all__ = ["install"]

# Checking for an absent file takes 3 us.
_LOOK_S = 0.2


def install() -> None:
    """Makes this process visible to `npu-profiler attach`."""
    listener = _Listener(Mailbox(control_directory(), os.getpid()))
    atexit.register(listener.stop)
    with signals_blocked():
        listener.start()


class _Listener(threading.Thread):
    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(name="npu-profiler attach", daemon=True)
        self._mailbox = mailbox
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._recording: Recording | None = None
        self._until_s = 0.0
        mailbox.announce()

    def run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            request = self._mailbox.take_request()
            if request is not None:
                self._obey(request)
            if self._recording is not None and time.monotonic() >= self._until_s:
                self._finish()

    def stop(self) -> None:
        """Runs at exit, and writes an unfinished recording."""
        if os.getpid() != self._pid:
            return
        self._stopping.set()
        self.join()
        if self._recording is not None:
            self._finish()
        self._mailbox.clear()

    def _obey(self, request: dict[str, Any]) -> None:
        if request.get("stop"):
            self._until_s = 0.0
            return
        try:
            recording = Recording(Path(request["output"]), TraceOptions(**request["options"]))
            recording.start()
        except (TraceError, OSError) as error:
            self._mailbox.answer({"error": str(error)})
        except (KeyError, TypeError) as error:
            self._mailbox.answer({"error": f"the request is of another version ({error})"})
        else:
            self._recording = recording
            self._until_s = time.monotonic() + float(request.get("seconds") or "inf")
            self._mailbox.answer({"recording": True})

    def _finish(self) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        try:
            recording.finish()
        except OSError as error:
            self._mailbox.answer({"error": f"{recording.path} was not written: {error}"})
            return
        lines = recording.summary.lines() if recording.summary is not None else []
        self._mailbox.answer({"done": True, "lines": lines})

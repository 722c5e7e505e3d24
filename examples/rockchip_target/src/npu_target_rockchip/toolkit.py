"""The process that runs rknn-toolkit2, which may crash, hang or fill memory."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from npu_command.interrupt import done_at_interrupt
from npu_compiler.target_compiler.vcl_process import Limits
from npu_target_rockchip.environment import broken, find_python

__all__ = ["Toolkit", "ToolkitEndedError"]

_WORKER = Path(__file__).with_name("worker.py")
_START_S = 120.0


class ToolkitEndedError(Exception):
    """The process ended before it replied; the text has the reason."""


class Toolkit:
    """One process of an installed release; it starts when it is needed, and again after an end.

    Attributes:
        release: of the toolkit.
        starts: how often the process was started; models of a former one are gone.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        """Finds the newest release; raises [target-absent] or [target-compiler]."""
        self._python, self.release = find_python()
        self._limits = limits or Limits()
        self._folder = tempfile.TemporaryDirectory(prefix="npu-rockchip-")
        self.folder = Path(self._folder.name)
        self._process: subprocess.Popen[bytes] | None = None
        self._at_interrupt = contextlib.ExitStack()
        self._lock = threading.RLock()
        self.starts = 0
        atexit.register(self.close)

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Returns the answer to a request of npu_target_rockchip.worker.

        Raises ToolkitEndedError when the process crashes or reaches its limit, [target-compiler]
        when it does not start.
        """
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
                process.stdin.flush()
            found = self._answer(self._limits.duration_s)
            if isinstance(found, str):
                self.close()
                raise ToolkitEndedError(found)
            return found

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.communicate()
            self._at_interrupt.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        self.starts += 1
        command = [str(self._python), "-I", str(_WORKER), str(self._limits.memory_bytes)]
        environment = {key: os.environ[key] for key in os.environ if not key.startswith("PYTHON")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "RKNN_LOG_LEVEL": "0"},
            cwd=self.folder,
            start_new_session=True,
        )
        # It is in a session of its own, which Ctrl-C does not reach.
        self._at_interrupt.enter_context(done_at_interrupt(self._process.kill))
        found = self._answer(_START_S)
        if isinstance(found, str) or "ready" not in found:
            said = found if isinstance(found, str) else str(found["broken"])
            self.close()
            raise broken(self._python.parent.parent, said)
        return self._process

    def _answer(self, limit_s: float) -> dict[str, Any] | str:
        """Returns one answer, or how the process ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        until_s, line = time.monotonic() + limit_s, b""
        while not line.endswith(b"\n"):
            left_s = until_s - time.monotonic()
            ready, _, _ = select.select([self._process.stdout], [], [], max(left_s, 0.0))
            if not ready:
                return f"the process took longer than {limit_s:.0f} s, and was ended"
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                code = self._process.wait()
                return f"the process ended with {f'signal {-code}' if code < 0 else f'code {code}'}"
            line += part
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

"""Prints the path of a token: frames, modules and functions from a command to the kernels' step.

    python tools/token_path.py chat --greedy --max-new-tokens 4 < questions.txt
    python tools/token_path.py generate --greedy --max-new-tokens 4 Hello

Run it twice: the first start also builds the model. The frames are the callers of the second
Execution.step, which decodes a token. Modules and functions are ours, called after the imports. It
also prints whether transformers or torch's compiler was imported.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from npu_llm.cli import main as run

PACKAGES = ("npu_command", "npu_compiler", "npu_llm", "npu_ops", "npu_runtime")
STEP = "Execution.step"  # calls the kernels
ABSENT = ("transformers", "torch._dynamo")


class CallPath:
    """The calls of a process, by sys.setprofile."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, str] = {}
        self.frames: list[str] = []
        self._steps = 0

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Records a call."""
        if event != "call":
            return
        code = frame.f_code
        if code not in self.functions and code.co_flags & 1 and not _is_importing(frame):
            self.functions[code] = _place(code)
        if code.co_qualname == STEP:
            self._steps += 1
            if self._steps == 2:
                self.frames = _stack(frame)


def _place(code: CodeType) -> str:
    """Returns the file of one of our functions, relative to its package; "" for others."""
    parts = Path(code.co_filename).parts
    found = [name for name in PACKAGES if name in parts]
    return "/".join(parts[parts.index(found[0]) :]) if found else ""


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _stack(frame: FrameType | None) -> list[str]:
    """Returns the frames from a subcommand's main to a frame, outermost first."""
    found: list[str] = []
    while frame is not None:
        code = frame.f_code
        found.insert(0, f"{_place(code) or code.co_filename}:{frame.f_lineno} {code.co_qualname}")
        if code.co_name == "main" and "/cli/" in code.co_filename:
            return found
        frame = frame.f_back
    return found


def main() -> int:
    """Runs an npu-llm command, and prints its path to standard error; returns its exit code."""
    path = CallPath()
    threading.setprofile(path.note)
    sys.setprofile(path.note)
    code = run(sys.argv[1:])
    sys.setprofile(None)
    functions = [place for place in path.functions.values() if place]
    modules = dict.fromkeys(functions)
    lines = [
        *(f"{number:3} {frame}" for number, frame in enumerate(path.frames, 1)),
        f"{len(path.frames)} frames from the command to the kernels",
        f"{len(modules)} modules of ours entered: {', '.join(modules)}",
        f"{len(functions)} functions of ours entered",
        *(f"{name}: {'imported' if name in sys.modules else 'not imported'}" for name in ABSENT),
    ]
    print(*lines, sep="\n", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

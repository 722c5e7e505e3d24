"""Renders chat templates within limits, in a separate process that can be killed.

A template is a program from an untrusted source. jinja2's sandbox blocks access to files and to
Python's internals, but not endless loops or allocations. Inside this process these could not be
stopped: multiplying a string or raising a number to a power is a single native call. The process
starts in a tenth of a second, once, and is reused.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from npu_llm.errors import OptionError
from npu_llm.tokenizer.template_worker import environment

__all__ = ["bounded_templates", "render", "start_early"]

_WORKER = Path(__file__).with_name("template_worker.py")
_MEMORY_BYTES = 512 << 20  # of address space; Python and jinja2 take about 50 MB
_SECONDS = 10.0  # real templates take a millisecond
_MOST_CHARACTERS = 32 << 20

_patching = threading.RLock()


class _Renderer:
    """The rendering process, started for the first template and after a kill."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, template: str, variables: dict[str, Any]) -> str:
        """Renders a template.

        Raises:
            TemplateError: if the template is invalid or rejects its variables.
            OptionError: [template-limit] if it takes too much time or memory.
        """
        try:
            line = json.dumps(
                {
                    "template": template,
                    "variables": variables,
                    "most_characters": _MOST_CHARACTERS,
                }
            )
        except (TypeError, ValueError) as failure:
            raise TemplateError(f"messages must consist of plain values: {failure}") from failure
        with self._lock:
            answer = self._ask(line.encode() + b"\n")
        if "limit" in answer:
            raise _over_limit(str(answer["limit"]))
        if "refusal" in answer:
            raise TemplateError(str(answer["refusal"]))
        return str(answer["text"])

    def start(self) -> None:
        """Starts the process if there is none, without waiting for it."""
        with self._lock:
            self._running()

    def end(self) -> None:
        """Kills the process."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _ask(self, line: bytes) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], _SECONDS)
            if ready:
                answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            if not answer:  # also after Ctrl-C: its reply must not be read for a later request
                self.end()
        if answer is None:
            raise _over_limit(f"more than {_SECONDS:.0f} s")
        if not answer:
            raise _over_limit("the end of the rendering process")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        # A forked child shares its parent's pipes: they would read each other's replies.
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", str(_WORKER), str(_MEMORY_BYTES), str(_SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # ignores Ctrl-C in the terminal
            )
            self._owner = os.getpid()
        return process


class _Template:
    """An object with the interface of a compiled template."""

    environment = environment()  # used only to parse: compiling would evaluate constants

    def __init__(self, text: str) -> None:
        self._text = text

    def render(self, **variables: Any) -> str:
        return _renderer.render(self._text, variables)


_renderer = _Renderer()
atexit.register(_renderer.end)


def start_early() -> None:
    """Starts the rendering process early, while the caller does other work."""
    _renderer.start()


def render(template: str, variables: dict[str, Any]) -> str:
    """Renders a template within the limits.

    Raises:
        TemplateError: if the template is invalid or rejects its variables.
        OptionError: [template-limit] if it takes too much time or memory.
    """
    return _renderer.render(template, variables)


@contextmanager
def bounded_templates() -> Iterator[None]:
    """Limits time and memory of the templates that transformers renders inside the block."""
    from transformers.utils import chat_template_utils

    with _patching:
        original = chat_template_utils._compile_jinja_template
        chat_template_utils._compile_jinja_template = _Template
        try:
            yield
        finally:
            chat_template_utils._compile_jinja_template = original


def _over_limit(received: str) -> OptionError:
    return OptionError(
        f"the chat template must render within {_SECONDS:.0f} s and {_MEMORY_BYTES >> 20} MB, got "
        f"{received}. Use the template that the model's authors published, or shorter messages.",
        code="template-limit",
    )

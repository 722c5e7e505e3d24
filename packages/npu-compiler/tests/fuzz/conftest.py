"""Children of the suite's supervisors, forked from a process that has imported torch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _forked_children(monkeypatch: pytest.MonkeyPatch, start_python: Callable[..., Any]) -> None:
    def start(command: list[str], *, text: bool, **how: Any) -> Any:
        assert text
        return start_python(command, **how)

    stand_in = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
    monkeypatch.setattr("npu_command.children.subprocess", stand_in)

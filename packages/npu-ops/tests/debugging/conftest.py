"""Fixtures: faults planted in the device's kernels, and a program for `npu-ops run`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

Plant = Callable[[str, Callable[..., Any]], None]


@pytest.fixture
def plant() -> Iterator[Plant]:
    """Replaces npu's kernel for one op until the test ends."""
    library = torch.library.Library("aten", "IMPL")

    def put(op: str, kernel: Callable[..., Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel is replaced, as intended
            library.impl(op, kernel, "PrivateUse1")

    yield put
    library._destroy()


@pytest.fixture
def script(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The file name of the program `SCRIPT` of the test's module, in the working directory."""
    monkeypatch.setattr("sys.argv", ["npu-ops"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(request.module.SCRIPT)
    yield "program.py"
    torch.use_deterministic_algorithms(False)
    sys.modules.pop("program", None)  # `-m program` imports it, as Python's -m does

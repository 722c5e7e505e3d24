"""What the tests of the tools share: faults planted in the device's kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

Plant = Callable[[str, Callable[..., Any]], None]


@pytest.fixture
def plant() -> Iterator[Plant]:
    """Puts a kernel in the place of npu's own for one op, until the test ends."""
    library = torch.library.Library("aten", "IMPL")

    def put(op: str, kernel: Callable[..., Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel was there, which is the idea
            library.impl(op, kernel, "PrivateUse1")

    yield put
    library._destroy()

"""Loading of folders whose sizes vary, on devices that take them and on those that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import npu_compiler
from npu_compiler.errors import ExportError


class OnTheCpu:
    """A folder on the CPU, called with tensors."""

    def __init__(self, path: Path) -> None:
        self._loaded = npu_compiler.load(path, device="CPU")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        found = self._loaded(*[x.numpy() for x in inputs])
        return pytree.tree_map_only(np.ndarray, torch.from_numpy, found)


@pytest.fixture
def load_varying(on_npu: bool) -> Callable[[Path], Any]:
    """Loads a folder whose sizes vary; where an NPU must refuse it, for the CPU."""

    def load(path: Path) -> Any:
        if not on_npu:
            return npu_compiler.load(path)
        with pytest.raises(ExportError, match=r"has one shape; got sizes that vary: .*dynamic"):
            npu_compiler.load(path)
        return OnTheCpu(path)

    return load

"""Imports of one module without the code of the packages that it lies in, for its help alone."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

__all__ = ["bare_packages"]

_DEVICE = "npu_runtime"  # what the others' modules name at their top, for its errors


@contextlib.contextmanager
def bare_packages(module: str) -> Iterator[None]:
    """Has the packages around a module, and npu_runtime, be folders only.

    npu_runtime and npu_ops register a device and its kernels when they are imported, for which
    they import torch; help needs neither. Packages that are loaded already are left as they are.
    What was imported inside goes with the end of it.

    Args:
        module: full name, npu_ops.tools.commands.run. It must not import torch at its top.
    """
    parts = module.split(".")[:-1]
    if not parts or parts[0] in sys.modules or _DEVICE in sys.modules:
        yield
        return
    folders = {root: _folders_of(root) for root in {parts[0], _DEVICE}}
    try:
        for root, found in folders.items():
            _put(root, found)
        for end in range(2, len(parts) + 1):
            inner = [folder.joinpath(*parts[1:end]) for folder in folders[parts[0]]]
            _put(".".join(parts[:end]), inner)
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in folders]:
            del sys.modules[name]


def _folders_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    return [Path(folder) for folder in spec.submodule_search_locations or ()]


def _put(name: str, folders: list[Path]) -> None:
    package = ModuleType(name)
    package.__path__ = [str(folder) for folder in folders]
    sys.modules[name] = package

"""The import name intel_npu_acceleration_library, which in this process stands for our package.

Nothing is installed under that name: a finder answers for it, first of all finders, once a program
has asked for it by `activate` or by `python -m npu_llm.compat`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from npu_llm.compat.absent import HOME, NAME, absent_module
from npu_llm.errors import CompatError

__all__ = ["NAME", "activate", "is_active"]

# A copy of OpenVINO came with that library.
_OPENVINO = f"{NAME}.external.openvino"
# Modules that have other names here.
_MOVED = {
    f"{NAME}.backend.compression": f"{HOME}.quantization",
    f"{NAME}.backend.linear": f"{HOME}.backend.matmul",
    f"{NAME}.backend.qlinear": f"{HOME}.backend.qmatmul",
    f"{NAME}.backend.utils": f"{HOME}.backend.driver",
}


def activate() -> None:
    """Makes intel_npu_acceleration_library importable in this process; a second call does nothing.

    The first import of it then makes `.to("npu")` of modules and tensors mean what it meant there;
    see npu_llm.compat.intel_npu_acceleration_library.device.

    Raises:
        CompatError: [compat-imported] when the library itself is already imported.
    """
    if is_active():
        return
    found = sys.modules.get(NAME)
    if found is not None:
        raise CompatError(
            f"npu_llm.compat: must be chosen before {NAME} is imported; got the library itself, "
            f"from {getattr(found, '__file__', None)}. Activate it first, or run the program by "
            "`python -m npu_llm.compat`.",
            code="compat-imported",
        )
    sys.meta_path.insert(0, _Finder())


def is_active() -> bool:
    """Whether the name stands for our package now."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class _Finder(MetaPathFinder):
    """Finds our modules, and OpenVINO, under that library's names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that loads ours, or None for any other name."""
        if fullname.partition(".")[0] != NAME:
            return None
        if (error := absent_module(fullname)) is not None:
            raise error
        home = _home_of(fullname)
        if importlib.util.find_spec(home) is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(home))


def _home_of(fullname: str) -> str:
    if fullname in _MOVED:
        return _MOVED[fullname]
    for name, home in ((_OPENVINO, "openvino"), (NAME, HOME)):
        if fullname == name or fullname.startswith(f"{name}."):
            return home + fullname.removeprefix(name)
    raise AssertionError(fullname)


class _Loader(Loader):
    """Gives the module that exists under another name, as it is."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports the module under its own name."""
        module = importlib.import_module(self._home)
        self._spec = module.__spec__
        if self._home == HOME:
            # Late: torch and dynamo, for the programs that import the library.
            device = importlib.import_module(f"{HOME}.device")
            device.enable_npu_device()
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its own spec back, which the import has replaced."""
        module.__spec__ = self._spec

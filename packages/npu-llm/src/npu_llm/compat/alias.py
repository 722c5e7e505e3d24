"""Aliases the import name intel_npu_acceleration_library to our package in this process.

Nothing is installed under that name. A finder ahead of all others resolves it, once a program calls
`activate` or runs under `python -m npu_llm.compat`. Unsupported names raise an error with their
replacement.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from npu_llm.errors import CompatError

__all__ = ["HOME", "NAME", "absent_module", "absent_name", "activate", "is_active"]

NAME = "intel_npu_acceleration_library"
HOME = f"npu_llm.compat.{NAME}"

_BINDINGS = "Use backend.NNFactory, whose methods build the same graphs."
_COMPILE = "Call compiler.compile, which does everything that a model needs."
_LAYERS = "Omit it: compile supports transformers' own layers."
_CACHE = "Omit it: compiled programs are cached, models are not."

# Modules, by name within that library.
_MODULES = {
    "backend.base": "Derive from backend.NNFactory, and override its run.",
    "backend.bindings": _BINDINGS,
    "backend.ops": "Use torch's functions on a graph's tensors.",
    "bindings": _BINDINGS,
}
# Unsupported names of supported modules.
_NAMES = {
    "backend.check_npu_and_driver_version": "See `npu-runtime doctor` for device and reason.",
    "backend.lib": _BINDINGS,
    "backend.driver.check_npu_and_driver_version": "See `npu-runtime doctor` for the device.",
    "compiler.apply_general_optimizations": _COMPILE,
    "compiler.apply_horizontal_fusion": "Call optimizations.horizontal_fusion_linear.",
    "compiler.create_npu_kernels": _COMPILE,
    "compiler.module_optimization": "Walk model.named_children() yourself.",
    "compiler.optimize_llama_attention": _LAYERS,
    "compiler.weights_quantization": "Call compiler.compile with dtype=int8 or int4.",
    "modelling.get_cache_dir": _CACHE,
    "modelling.get_mangled_model_name": _CACHE,
    "modelling.get_model_path": _CACHE,
    "nn.LlamaAttention": _LAYERS,
    "nn.conv.Im2ColConv2d": "Use nn.Conv2d.",
    "nn.llm.FusedLlamaMLP": _LAYERS,
    "nn.llm.LlamaAttention": _LAYERS,
}
# That library included a copy of OpenVINO.
_OPENVINO = f"{NAME}.external.openvino"
# Modules of that library with names in another module here.
_MOVED = {
    "backend.compression": "quantization",
    **dict.fromkeys(
        [
            f"backend.{one}"
            for one in ("convolution", "linear", "matmul", "mlp", "qlinear", "qmatmul", "sdpa")
        ],
        "backend.operators",
    ),
    "backend.driver": "backend.runtime",
    "backend.utils": "backend.runtime",
    "device": "compiler",
    "functional.scaled_dot_product_attention": "functional",
    **dict.fromkeys(("nn.autograd", "nn.conv", "nn.linear", "nn.module"), "nn.layers"),
}


def activate() -> None:
    """Makes intel_npu_acceleration_library importable in this process; idempotent.

    Its first import also changes `.to("npu")` of modules and tensors to that library's meaning; see
    npu_llm.compat.intel_npu_acceleration_library.compiler.

    Raises:
        CompatError: [compat-imported] if the library itself is already imported.
    """
    if is_active():
        return
    found = sys.modules.get(NAME)
    if found is not None:
        raise CompatError(
            f"`npu_llm.compat` must be activated before {NAME} is imported, got the library "
            f"itself, from {getattr(found, '__file__', None)}. Activate it first, or run the "
            "program with `python -m npu_llm.compat`.",
            code="compat-imported",
        )
    sys.meta_path.insert(0, _Finder())


def is_active() -> bool:
    """Whether the name refers to our package."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def absent_module(fullname: str) -> CompatError | None:
    """Returns the error for a module of that library that is not supported; None for others.

    Args:
        fullname: the module's name within that library.
    """
    short = fullname.removeprefix(f"{NAME}.")
    return _error(short, _MODULES[short]) if short in _MODULES else None


def absent_name(module: str, name: str) -> CompatError | AttributeError:
    """Returns the error for a name that a module does not have.

    Args:
        module: `__name__` of the module.
        name: the requested name.
    """
    for short, advice in _NAMES.items():
        home, _, last = short.rpartition(".")
        if last == name and _home_of(f"{NAME}.{home}") == module:
            return _error(short, advice)
    return AttributeError(f"module {module!r} has no attribute {name!r}")


class _Finder(MetaPathFinder):
    """Finds our modules, and OpenVINO, under that library's names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a module that loads ours, or None for any other name."""
        if fullname.partition(".")[0] != NAME:
            return None
        if (error := absent_module(fullname)) is not None:
            raise error
        home = _home_of(fullname)
        if importlib.util.find_spec(home) is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(home))


def _home_of(fullname: str) -> str:
    if (short := fullname.removeprefix(f"{NAME}.")) in _MOVED:
        return f"{HOME}.{_MOVED[short]}"
    for name, home in ((_OPENVINO, "openvino"), (NAME, HOME)):
        if fullname == name or fullname.startswith(f"{name}."):
            return home + fullname.removeprefix(name)
    raise AssertionError(fullname)


class _Loader(Loader):
    """Returns an existing module under another name."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports the module under its own name."""
        module = importlib.import_module(self._home)
        self._spec = module.__spec__
        if self._home == HOME:
            # Imported late: loads torch and dynamo, only for programs that import the library.
            importlib.import_module(f"{HOME}.compiler").enable_npu_device()
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own spec, which the import has replaced."""
        module.__spec__ = self._spec


def _error(short: str, advice: str) -> CompatError:
    return CompatError(
        f"`{NAME}.{short}` must be a supported name, got an unsupported one. {advice}",
        code="compat-absent",
    )

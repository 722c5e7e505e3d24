"""The errors of this package, all under npu_runtime's NpuError.

The codes are explained in docs/reference/errors.md; the base tree lives in npu_runtime.errors.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = [
    "CompilerError",
    "DumpError",
    "ExportError",
    "GraphError",
    "IndexRangeError",
    "LoweringError",
    "OptionError",
    "PassError",
    "QualityError",
    "RegistryError",
    "SuiteError",
    "TuningError",
    "WrongResultError",
    "WrongResultWarning",
]


def _platform_errors() -> ModuleType:
    """npu_runtime.errors without the package around it, which imports torch.

    Exported models are loaded in processes without torch, and an import of torch later on must
    meet the same classes.
    """
    name = "npu_runtime.errors"
    if name in sys.modules or "torch" in sys.modules:
        return importlib.import_module(name)
    package = importlib.util.find_spec("npu_runtime")
    if package is None or package.origin is None:
        raise ImportError("npu-compiler needs npu-runtime. Run pip install npu-runtime.")
    spec = importlib.util.spec_from_file_location(name, Path(package.origin).with_name("errors.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from npu_runtime.errors import IndexRangeError, NpuError
else:
    IndexRangeError = _platform_errors().IndexRangeError
    NpuError = _platform_errors().NpuError


class CompilerError(NpuError):
    """Something the compiler cannot do, with a stable code."""


class LoweringError(CompilerError):
    """A graph, or one node of it, cannot be expressed as an OpenVINO model.

    Attributes:
        node_name: the FX node that is refused; empty when it is no single node.
        reason: why, without the node's name and place.
    """

    def __init__(self, message: str, code: str, node_name: str = "", reason: str = "") -> None:
        super().__init__(message, code)
        self.node_name = node_name
        self.reason = reason


class RegistryError(CompilerError):
    """Two converters claim one op, or a converter is registered for something other than an op."""


class OptionError(CompilerError, ValueError):
    """An option has a name or a value that the compiler does not know."""


class ExportError(CompilerError, ValueError):
    """A model cannot be exported, an exported one cannot be loaded, or its inputs do not fit."""


class GraphError(CompilerError, ValueError):
    """A graph built by hand has a call, an input or an output that does not fit."""


class PassError(CompilerError):
    """A pass over a graph left something that is not the graph it was given."""


class DumpError(CompilerError, ValueError):
    """What NPU_COMPILE_DEBUG wrote cannot be found or read, or its page cannot be written."""


class TuningError(CompilerError, ValueError):
    """A file of tuning records cannot be read or written."""


class SuiteError(CompilerError, ValueError):
    """The suite of architectures was asked for what it does not have, or lacks transformers."""


class QualityError(CompilerError, RuntimeError):
    """A compressed model lost more than its limit allows."""


class WrongResultError(CompilerError, RuntimeError):
    """A program computed something else than torch, and strict allows no other way to run it."""


class WrongResultWarning(UserWarning):
    """A program computed something else than torch; it was mended or is run eagerly from now on."""

"""The errors of this package, all under npu_runtime's NpuError."""

from __future__ import annotations

from npu_command.errors import IndexRangeError, NpuError

__all__ = [
    "CompilerError",
    "CompilerFailureWarning",
    "DumpError",
    "ExportError",
    "GraphError",
    "IndexRangeError",
    "LoweringError",
    "ModelInputError",
    "OptionError",
    "PassError",
    "QualityError",
    "RegistryError",
    "SuiteError",
    "TargetError",
    "TuningError",
    "WrongResultError",
    "WrongResultWarning",
]


class CompilerError(NpuError):
    """The compiler cannot do something; the error has a stable code."""


class LoweringError(CompilerError):
    """A graph, or one node of it, cannot be expressed as an OpenVINO model.

    Attributes:
        node_name: the FX node that is refused; empty if it is not a single node.
        reason: why, without the node's name and place.
    """

    def __init__(self, message: str, code: str, node_name: str = "", reason: str = "") -> None:
        super().__init__(message, code)
        self.node_name = node_name
        self.reason = reason


class RegistryError(CompilerError):
    """An op or a converter is defined twice, or for an object that cannot have one."""


class OptionError(CompilerError, ValueError):
    """An option has an unknown name or value."""


class ExportError(CompilerError, ValueError):
    """A model cannot be exported, an exported one cannot be loaded, or inputs do not match."""


class ModelInputError(CompilerError, RuntimeError):
    """A model's operators refuse the inputs of a call."""


class GraphError(CompilerError, ValueError):
    """A graph built by hand has an invalid call, input or output."""


class PassError(CompilerError):
    """A pass broke an invariant of the graph."""


class DumpError(CompilerError, ValueError):
    """Dumps of NPU_COMPILE_DEBUG cannot be found or read, or their page cannot be written."""


class TuningError(CompilerError, ValueError):
    """A file of tuning records cannot be read or written."""


class TargetError(CompilerError, ValueError):
    """A vendor's compiler is missing, damaged, or cannot be fetched or started."""


class SuiteError(CompilerError, ValueError):
    """The suite of architectures has no such model, or transformers is not installed."""


class QualityError(CompilerError, RuntimeError):
    """A compressed model lost more than its limit allows."""


class WrongResultError(CompilerError, RuntimeError):
    """A program's results differ from torch's, and `strict` forbids running the graph eagerly."""


class CompilerFailureWarning(UserWarning):
    """The compiler failed on a part of a graph, which runs in another way."""


class WrongResultWarning(UserWarning):
    """A program's results differed from torch's; it was corrected, or now runs eagerly."""

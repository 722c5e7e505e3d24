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
    """An op or a converter is defined twice, or for something that cannot have it."""


class OptionError(CompilerError, ValueError):
    """An option has a name or a value that the compiler does not know."""


class ExportError(CompilerError, ValueError):
    """A model cannot be exported, an exported one cannot be loaded, or its inputs do not fit."""


class ModelInputError(CompilerError, RuntimeError):
    """A model was given inputs that its own operators refuse."""


class GraphError(CompilerError, ValueError):
    """A graph built by hand has a call, an input or an output that does not fit."""


class PassError(CompilerError):
    """A pass over a graph left something that is not the graph it was given."""


class DumpError(CompilerError, ValueError):
    """What NPU_COMPILE_DEBUG wrote cannot be found or read, or its page cannot be written."""


class TuningError(CompilerError, ValueError):
    """A file of tuning records cannot be read or written."""


class TargetError(CompilerError, ValueError):
    """A vendor's compiler is missing, damaged, or cannot be fetched or started."""


class SuiteError(CompilerError, ValueError):
    """The suite of architectures was asked for what it does not have, or lacks transformers."""


class QualityError(CompilerError, RuntimeError):
    """A compressed model lost more than its limit allows."""


class WrongResultError(CompilerError, RuntimeError):
    """A program computed something else than torch, and strict allows no other way to run it."""


class CompilerFailureWarning(UserWarning):
    """The compiler failed at something, which runs in another way."""


class WrongResultWarning(UserWarning):
    """A program computed something else than torch; it was mended or is run eagerly from now on."""

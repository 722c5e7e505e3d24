"""The errors of this package, all under npu_runtime's NpuError.

The codes are explained in docs/reference/errors.md; the base tree lives in npu_runtime.errors.
"""

from __future__ import annotations

from npu_runtime.errors import NpuError

__all__ = ["CompilerError", "LoweringError", "OptionError", "RegistryError"]


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
    """Two converters claim one op, or a converter is registered for something that is no op."""


class OptionError(CompilerError, ValueError):
    """An option has a name or a value that the compiler does not know."""

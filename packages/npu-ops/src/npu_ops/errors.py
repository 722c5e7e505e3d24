"""The errors of this package, all under npu_runtime's NpuError.

The codes are explained in docs/reference/errors. Errors of native kernels are torch's own
classes with a code at the end.
"""

from npu_runtime.errors import NpuError

__all__ = [
    "ConformanceError",
    "DamagedFileError",
    "OperatorInputError",
    "OpsError",
    "VerificationError",
]


class OpsError(NpuError):
    """An error of an operator or a tool, with a stable code."""


class OperatorInputError(OpsError, ValueError):
    """An argument breaks a rule that the message states."""


class DamagedFileError(OpsError):
    """A file was damaged or changed after it was written."""


class ConformanceError(OpsError):
    """A conformance run cannot run with the given options."""


class VerificationError(OpsError, AssertionError):
    """A result differs from the expected one; the message is the report."""

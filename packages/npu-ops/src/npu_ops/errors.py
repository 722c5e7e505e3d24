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
    """Something about operators that cannot be done, with a stable code."""


class OperatorInputError(OpsError, ValueError):
    """An argument breaks a rule that the message states."""


class DamagedFileError(OpsError):
    """A file is not as it was written."""


class ConformanceError(OpsError):
    """A conformance run cannot be made as asked."""


class VerificationError(OpsError, AssertionError):
    """A result is not the expected one; the text is the report."""

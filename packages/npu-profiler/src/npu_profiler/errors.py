"""The error that a user of the profiler can meet: a wrong path, a second recording at once."""

from npu_command.errors import NpuError

__all__ = ["TraceError"]


class TraceError(NpuError):
    """What was asked of the profiler cannot be done."""

"""The profiler's error class."""

from npu_command.errors import NpuError

__all__ = ["TraceError"]


class TraceError(NpuError):
    """The profiler cannot do the requested work."""

"""The platform's exceptions, under the name that programs import."""

from npu_command.errors import (
    DeviceError,
    DriverError,
    FileAccessError,
    IndexRangeError,
    InputError,
    KindError,
    NpuError,
    ProgramError,
)

__all__ = [
    "DeviceError",
    "DriverError",
    "FileAccessError",
    "IndexRangeError",
    "InputError",
    "KindError",
    "NpuError",
    "ProgramError",
]

"""Why no device may be used although one could serve: a setting that is wrong.

Importing torch must work all the same, so the error waits for the first use of the device; commands
ask for it before they start.
"""

from npu_runtime import _C
from npu_runtime.config import config
from npu_runtime.errors import NpuError
from npu_runtime.info import device_info

__all__ = ["check_environment", "refusal", "refuse_device"]

_refusal: NpuError | None = None


def refuse_device(error: NpuError) -> None:
    """From now on every use of the device raises this error; the first one given stays.

    Precondition: no device was used yet.
    """
    global _refusal
    if _refusal is None:
        _refusal = error
        _C.refuse_device(error.code, error.message)


def refusal() -> NpuError | None:
    """The error that every use of the device raises; None where nothing is wrong."""
    return _refusal


def check_environment() -> None:
    """Raises now what the first use of the device would, where the environment is why.

    For callers whose later errors come to the user inside another's, such as dynamo's. A device is
    opened only where ``NPU_DEVICE`` or ``NPU_DRIVER`` asks for one by name.

    Raises:
        NpuError: a setting is wrong (code ``bad-setting``), or the device that was named is not
            there (``device-absent``).
    """
    if _refusal is not None:
        raise _refusal
    if (config.device or config.driver) and _C.device_count() == 0:
        device_info(0)

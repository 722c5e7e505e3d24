"""Refusal of the device because of an invalid setting.

Importing torch must still work, so the error is raised at the first use of the device; commands
check for it before they start.
"""

from npu_runtime import _C
from npu_runtime.config import config
from npu_runtime.errors import NpuError
from npu_runtime.info import device_info

__all__ = ["check_environment", "refusal", "refuse_device"]

_refusal: NpuError | None = None


def refuse_device(error: NpuError) -> None:
    """Makes every use of the device raise this error; only the first call has an effect.

    Precondition: no device has been used yet.
    """
    global _refusal
    if _refusal is None:
        _refusal = error
        _C.refuse_device(error.code, error.message)


def refusal() -> NpuError | None:
    """Returns the error that every use of the device raises, or None."""
    return _refusal


def check_environment() -> None:
    """Raises the error of the first use of the device, if the environment causes it.

    For callers with later errors that another library wraps, such as dynamo. Opens a device
    only if ``NPU_DEVICE`` or ``NPU_DRIVER`` names one.

    Raises:
        NpuError: a setting is invalid (code ``bad-setting``), or the named device is missing
            (``device-absent``).
    """
    if _refusal is not None:
        raise _refusal
    if (config.device or config.driver) and _C.device_count() == 0:
        device_info(0)

"""Entry point of ``import torch``: torch calls ``autoload`` at the end of its import.

A separate package, so that loading the entry point cannot fail with npu_runtime. It starts
npu_runtime/startup/registration.py.
"""

import contextlib
import importlib
import sys
import warnings

from npu_runtime_autoload.torch_version import refuse_device, wrong_torch

__all__ = ["autoload"]


def autoload() -> None:
    """Imports npu_runtime; a failure is a warning, because a broken device must not break torch.

    If a program imports npu_runtime first, torch's import runs inside that import, and this call
    has nothing to do.

    With another minor release of torch than the wheels are built for, the native code is not
    loaded: it would cause undefined symbols, or long messages of torch's dispatcher.
    """
    problem = wrong_torch()
    if problem is not None:
        warnings.warn(str(problem), RuntimeWarning, stacklevel=2)
        with contextlib.suppress(Exception):  # an unknown release
            refuse_device(problem)
        return
    try:
        importlib.import_module("npu_runtime")
    except Exception as error:  # noqa: BLE001  # whatever is broken, torch must import
        warnings.warn(
            f"npu: the device could not be registered: {type(error).__name__}: {error}. "
            "Tensors on npu will not work; reinstall npu-runtime and npu-ops, or set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 to go without. [autoload]",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    _warn_of_settings()


def _warn_of_settings() -> None:
    """Warns now of the error that an invalid setting causes at every use of the device."""
    module = sys.modules.get("npu_runtime.refusal")  # absent if npu_runtime's import has begun
    error = None if module is None else module.refusal()
    if error is not None:
        warnings.warn(f"npu: the device will not serve: {error}", RuntimeWarning, stacklevel=3)

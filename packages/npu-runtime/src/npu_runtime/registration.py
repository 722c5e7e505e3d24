"""Makes torch know the device: the name ``npu``, ``torch.npu``, methods on tensors and modules.

Happens once, on import; opens no device. The native half registers itself when the library loads.
"""

import atexit

import torch
import torch.utils.backend_registration as backend_registration

from npu_runtime import _C, distributed, npu
from npu_runtime.config import config
from npu_runtime.drivers import openvino_library, vendor_drivers
from npu_runtime.memory_check import install_memory_check, install_oom_snapshot

__all__: list[str] = []


def _register() -> None:
    _C.configure(
        config.driver, config.device, openvino_library(), vendor_drivers(), config.launch_blocking
    )
    if config.sanitizer:
        _C.set_sanitizer(True)
    backend_registration.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", npu)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    distributed.register()
    if config.memory_check:
        install_memory_check()
    if config.oom_snapshot:
        install_oom_snapshot(config.oom_snapshot)
    atexit.register(_finish)


def _finish() -> None:
    """Lets enqueued work end while Python is whole; errors that nobody asked for stay unseen."""
    if _C.is_open():
        _C.drain()


_register()

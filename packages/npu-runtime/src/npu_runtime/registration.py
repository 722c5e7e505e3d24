"""Makes torch know the device: the name ``npu``, ``torch.npu``, methods on tensors and modules.

Happens once, on import; opens no device. The native half registers itself when the library loads.
"""

import importlib.util
from pathlib import Path

import torch
import torch.utils.backend_registration as backend_registration

from npu_runtime import _C, distributed, npu
from npu_runtime.config import config

__all__: list[str] = []


def _vendor_library() -> str:
    """Path of OpenVINO's C library, or an empty string; found without importing openvino."""
    spec = importlib.util.find_spec("openvino")
    if spec is None or not spec.submodule_search_locations:
        return ""
    libraries = sorted(Path(spec.submodule_search_locations[0], "libs").glob("libopenvino_c.so*"))
    return str(libraries[-1]) if libraries else ""


def _register() -> None:
    _C.configure(_vendor_library(), config.device)
    backend_registration.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", npu)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    distributed.register()


_register()

"""Check of torch's minor release against the native code, and the behaviour on a mismatch.

`pip install` of another library may replace torch with a newer one, below the wheels that need it.
"""

import sys
from types import ModuleType
from typing import Any, NoReturn

from npu_command.errors import NpuError

__all__ = [
    "BUILT_FOR",
    "TorchVersionError",
    "is_built_for",
    "refuse_device",
    "require_torch",
    "wrong_torch",
]

BUILT_FOR = "2.13"  # the minor release in pyproject.toml


class TorchVersionError(NpuError, ImportError):
    """torch is of another minor release than the native code is built for."""


def is_built_for(version: str) -> bool:
    """Whether the native code is built for a version of torch."""
    return version.split("+")[0].split(".")[:2] == BUILT_FOR.split(".")


def wrong_torch() -> TorchVersionError | None:
    """Returns the mismatch of torch's version and its fix; None if the version fits."""
    import torch

    version = str(torch.__version__)
    if is_built_for(version):
        return None
    return TorchVersionError(
        f"npu: torch must be {BUILT_FOR}, as npu-runtime and npu-ops are built for it, got torch "
        f'{version}. Run: python -m pip install "torch=={BUILT_FOR}.*". Another library may have '
        "replaced it; docs/get-started/install.md lists the supported releases.",
        code="torch-version",
    )


def require_torch() -> None:
    """Raises TorchVersionError if torch is not of the release that the native code is built for."""
    problem = wrong_torch()
    if problem is not None:
        raise problem


def refuse_device(problem: TorchVersionError) -> None:
    """Makes torch raise an error wherever the npu device is used."""
    import torch
    from torch.utils.backend_registration import rename_privateuse1_backend

    rename_privateuse1_backend("npu")
    module = _Refusing("torch.npu")
    module.problem = problem
    torch._register_device_module("npu", module)  # type: ignore[no-untyped-call]
    sys.modules["torch.npu"] = module


class _Refusing(ModuleType):
    """Replaces torch.npu: reports that there is no device, and raises the reason on use."""

    problem: TorchVersionError

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def is_initialized(self) -> bool:
        return False

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Does nothing: torch.manual_seed calls it, and warns if a device lacks it."""

    def _lazy_init(self) -> NoReturn:  # called by torch before the device's first use
        raise TorchVersionError(self.problem.message, self.problem.code)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"torch.npu.{name}: {self.problem}")

"""Host fallback of ``torch.npu``: its report and policy.

These functions forward to npu-ops, which owns the kernels and rules, by name, because it depends on
this package.
"""

from collections.abc import Sequence
from typing import Any

from npu_runtime.plugins import kernel_package

__all__ = ["fallback_report", "reset_fallback_report", "set_fallback_policy"]


def fallback_report() -> dict[str, int]:
    """Returns calls per op that ran on the host since the last reset, most frequent first.

    For example ``{"aten::cumsum": 12}``. Excludes ops with an npu kernel.

    Raises:
        DeviceError: npu-ops is not installed (code ``kernels-absent``).
    """
    report: dict[str, int] = kernel_package().fallback_report()
    return report


def reset_fallback_report() -> None:
    """Sets all counts back to zero."""
    kernel_package().reset_fallback_report()


def set_fallback_policy(
    *, strict: bool | None = None, host_ops: Sequence[str] | None = None
) -> None:
    """Sets, for the whole process, which ops may run on the host.

    Args:
        strict: whether an op without an npu kernel is an error (``NPU_STRICT``); None keeps the
            setting.
        host_ops: patterns of ops that always run on the host, strict or not
            (``NPU_FALLBACK_OPS``): ``aten.mm``, ``mm``, ``aten.*norm*``. None keeps the setting.
    """
    kernels: Any = kernel_package()
    kernels.set_fallback_policy(strict=strict, host_ops=host_ops)

"""torch.npu's view of host kernels: what ran on them, and whether it may.

The kernels and their rules are npu-ops's; these hand on to it by name, since it stands above this
package.
"""

from collections.abc import Sequence
from typing import Any

from npu_runtime.plugins import kernel_package

__all__ = ["fallback_report", "reset_fallback_report", "set_fallback_policy"]


def fallback_report() -> dict[str, int]:
    """Returns calls per op that ran on the host since the last reset, most frequent first.

    For example ``{"aten::cumsum": 12}``. Ops with a kernel of their own on npu are not among them.

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
    """Changes from now on, for the whole process, which ops may run on the host.

    Args:
        strict: whether an op without a kernel of its own is an error (``NPU_STRICT``); None leaves
            it as it is.
        host_ops: patterns of ops that run on the host in any case, strict or not
            (``NPU_FALLBACK_OPS``): ``aten.mm``, ``mm``, ``aten.*norm*``. None leaves them.
    """
    kernels: Any = kernel_package()
    kernels.set_fallback_policy(strict=strict, host_ops=host_ops)

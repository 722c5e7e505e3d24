"""Device memory of a process, in a small file that an external monitor reads.

`npu-ops monitor` sets `NPU_OPS_MEMORY_DIR` for its command; each of its processes that imports
npu_ops then keeps a file there. Without the variable, this module does nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from npu_command.whole_files import write_text

__all__ = ["keep_account", "read_accounts"]

_INTERVAL_S = 0.05


def keep_account(directory: Path) -> None:
    """Starts a thread that writes this process's device memory while the directory exists."""
    thread = threading.Thread(target=_keep, args=(directory,), name="npu-account", daemon=True)
    thread.start()
    os.register_at_fork(after_in_child=lambda: keep_account(directory))


def read_accounts(directory: Path, process_ids: list[int]) -> tuple[int, int]:
    """Returns the last reported bytes that tensors and pools of some processes hold."""
    allocated, reserved = 0, 0
    for process_id in process_ids:
        with contextlib.suppress(OSError, ValueError):
            first, second = (directory / str(process_id)).read_text().split()
            allocated, reserved = allocated + int(first), reserved + int(second)
    return allocated, reserved


def _keep(directory: Path) -> None:
    import torch

    file = directory / str(os.getpid())
    npu = torch.get_device_module("npu")
    while directory.is_dir():
        # Does not open the device if it is not open.
        if npu.is_initialized():
            text = f"{npu.memory_allocated()} {npu.memory_reserved()}"
            with contextlib.suppress(OSError):
                write_text(file, text)
        time.sleep(_INTERVAL_S)

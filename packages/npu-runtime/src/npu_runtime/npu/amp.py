"""Mixed precision of ``torch.npu``: which dtypes autocast may choose."""

import torch

__all__ = ["get_amp_supported_dtype", "is_bf16_supported"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes for ``torch.autocast("npu", dtype=...)``."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """Whether bfloat16 works; it does on every device that the driver serves."""
    return True

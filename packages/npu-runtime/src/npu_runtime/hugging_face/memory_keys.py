"""The keys of `max_memory`: npu by its name, where accelerate counts devices by index alone."""

from typing import Any

import torch

from npu_runtime import npu

__all__ = ["with_indices"]


def with_indices(counted: Any, max_memory: Any = None) -> Any:
    """Calls accelerate's or transformers' get_max_memory with `npu` and `npu:1` as indices.

    Args:
        counted: that function.
        max_memory: bytes, or a text such as "2GB", by device; None for all memory there is.
    """
    if max_memory is None:
        return counted(None)
    named = {key: torch.device(key) for key in max_memory if str(key).partition(":")[0] == "npu"}
    if not named:
        return counted(max_memory)
    npu.init()  # the program has named it: from here on it is there for whoever asks
    indices = {key: device.index or 0 for key, device in named.items()}
    sizes = {indices.get(key, key): size for key, size in max_memory.items()}
    counts = counted(sizes)
    # accelerate writes bytes in the place of texts, and callers count on it.
    max_memory.update({key: sizes[indices.get(key, key)] for key in max_memory})
    return counts

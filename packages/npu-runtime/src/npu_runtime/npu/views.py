"""Zero-copy views of ``torch.npu``: the same bytes as a CPU tensor, or as an npu tensor.

Native (csrc/python/views.cpp). Exchange with other libraries is in
npu_runtime/torch_integration/dlpack.py.
"""

import torch

from npu_runtime import _C
from npu_runtime.public_calls import public_call

__all__ = ["as_cpu", "as_npu"]


@public_call
def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the bytes of an npu tensor; nothing is copied.

    Waits for the device first. What is written to either is seen in both; after later work on the
    device, call ``torch.npu.synchronize()`` before you look again. The view keeps the memory alive,
    and its storage cannot be resized.

    For autograd it is a ``detach()``: no gradient flows through it, and since the two share a
    version counter, an in-place change of values that a backward pass needs is found.

    Args:
        tensor: dense and strided, on npu, of any dtype, shape and strides.

    Raises:
        InputError: it is not on npu (code ``view-device``), or sparse or nested (``view-layout``).
    """
    return _C.as_cpu(tensor.detach())


@public_call
def as_npu(tensor: torch.Tensor) -> torch.Tensor:
    """An npu tensor over the bytes of a CPU tensor in device memory; nothing is copied.

    Device memory is what pinned tensors and the views of :func:`as_cpu` have. All that is said
    there about waiting, lifetime and autograd holds here.

    Args:
        tensor: dense and strided, on cpu, of any dtype, shape and strides.

    Raises:
        InputError: it is not on cpu (code ``view-device``), not in device memory
            (``view-memory``), or sparse or nested (``view-layout``).
    """
    return _C.as_npu(tensor.detach())

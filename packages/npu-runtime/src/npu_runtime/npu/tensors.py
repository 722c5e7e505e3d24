"""Tensors of ``torch.npu``: zero-copy views, and legacy types such as FloatTensor.

Views are native (csrc/python/views.cpp). Exchange with other libraries is in
npu_runtime/startup/registration.py. New code writes ``torch.tensor(..., device="npu")``.
"""

from typing import Any

import torch

from npu_runtime import _C
from npu_runtime.errors import InputError
from npu_runtime.public_calls import public_call

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
    "as_cpu",
    "as_npu",
]


class _TensorType(type):
    """A legacy type of strided npu tensors of one dtype; calling it creates a tensor."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "npu"
            and instance.dtype == cls.dtype
            and instance.layout == torch.strided
        )

    def __call__(cls, *args: Any) -> torch.Tensor:
        # Torch's own classes have the rules: sizes allocate uninitialized memory, sequences are
        # copied.
        try:
            on_cpu: torch.Tensor = getattr(torch, cls.__name__.rpartition(".")[2])(*args)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{cls.__name__}: arguments must be sizes, or values of its dtype, got an error "
                f"of torch: {error}. Correct them, or use torch.tensor(..., device='npu').",
                code="tensor-arguments",
            ) from error
        return on_cpu.to("npu")


def _tensor_type(name: str, dtype: torch.dtype) -> _TensorType:
    # Tensor.type() reads the class's name, and accepts it with the module's name as prefix.
    return _TensorType(f"torch.npu.{name}", (), {"dtype": dtype, "__module__": __name__})


BFloat16Tensor = _tensor_type("BFloat16Tensor", torch.bfloat16)
BoolTensor = _tensor_type("BoolTensor", torch.bool)
ByteTensor = _tensor_type("ByteTensor", torch.uint8)
CharTensor = _tensor_type("CharTensor", torch.int8)
DoubleTensor = _tensor_type("DoubleTensor", torch.float64)
FloatTensor = _tensor_type("FloatTensor", torch.float32)
HalfTensor = _tensor_type("HalfTensor", torch.float16)
IntTensor = _tensor_type("IntTensor", torch.int32)
LongTensor = _tensor_type("LongTensor", torch.int64)
ShortTensor = _tensor_type("ShortTensor", torch.int16)


@public_call
def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor that shares the memory of an npu tensor.

    Waits for the device first. Writes to either tensor are visible in both; after later work on the
    device, call ``torch.npu.synchronize()`` before reading the view. The view keeps the memory
    alive, and its storage cannot be resized.

    For autograd it is a ``detach()``: no gradient flows through it. The two share a version
    counter, so autograd detects in-place changes of values that a backward pass needs.

    Args:
        tensor: dense and strided, on npu, of any dtype, shape and strides.

    Raises:
        InputError: the tensor is not on npu (code ``view-device``), or is sparse or nested
            (``view-layout``).
    """
    return _C.as_cpu(tensor.detach())


@public_call
def as_npu(tensor: torch.Tensor) -> torch.Tensor:
    """Returns an npu tensor that shares the memory of a CPU tensor in device memory.

    Pinned tensors and views of :func:`as_cpu` are in device memory. The rules there about
    synchronization, lifetime and autograd apply here too.

    Args:
        tensor: dense and strided, on cpu, of any dtype, shape and strides.

    Raises:
        InputError: the tensor is not on cpu (code ``view-device``), not in device memory
            (``view-memory``), or sparse or nested (``view-layout``).
    """
    return _C.as_npu(tensor.detach())

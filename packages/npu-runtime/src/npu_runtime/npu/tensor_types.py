"""``torch.npu.FloatTensor`` and its relatives: constructors and ``isinstance`` checks of old code.

New code writes ``torch.tensor(..., dtype=..., device="npu")``.
"""

from typing import Any

import torch

from npu_runtime.errors import InputError

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
]


class _TensorType(type):
    """A name for strided npu tensors of one dtype; calling it makes one."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "npu"
            and instance.dtype == cls.dtype
            and instance.layout == torch.strided
        )

    def __call__(cls, *args: Any) -> torch.Tensor:
        # torch's own classes know the rules: sizes give memory as it is, a sequence its values.
        try:
            on_cpu: torch.Tensor = getattr(torch, cls.__name__.rpartition(".")[2])(*args)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{cls.__name__}: arguments must be sizes, or values of its dtype; got what torch "
                f"refuses: {error}. Pass such, or use torch.tensor(..., device='npu').",
                code="tensor-arguments",
            ) from error
        return on_cpu.to("npu")


def _tensor_type(name: str, dtype: torch.dtype) -> _TensorType:
    # Tensor.type() reads the class's name, and knows it with the module in front.
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

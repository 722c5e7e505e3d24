"""Calls of the fuzzer as plain data, their arguments on a device, and excluded ops."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map

from npu_ops.op_conformance.comparison import copy_to

__all__ = [
    "EXCLUDED",
    "INCOMPARABLE",
    "Call",
    "Mark",
    "TensorSpec",
    "is_comparable",
    "is_excluded",
    "is_undefined",
]


_CELLS = 250_000  # maximum elements allocated per spec; views may have more
_QUANTIZED = {"quint8": torch.quint8, "qint8": torch.qint8, "qint32": torch.qint32}
_NEGATIVE = (torch.float32, torch.float64, torch.complex64, torch.int64)  # has a lazy negative
_SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 3.4e38, 1e-45, 0.5, -1.0)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as plain data.

    Attributes:
        shape: shape of the tensor.
        strides: strides in elements; None for contiguous.
        offset: storage offset in elements.
        dtype: for example ``"float32"``.
        fill: ``"normal"``, ``"small"`` (integers from 0 to 3), ``"signed"`` (integers from -5 to
            5), ``"special"`` (NaN, infinities and so on) or ``"zeros"``.
        layout: ``"strided"``, a name of a sparse layout, of a quantized dtype, or ``"nested"``.
        view: ``""``, ``"conj"`` or ``"neg"``.
        storage: tensors of one call with the same number share their memory.
        place: ``"device"``, or ``"cpu"`` and ``"meta"`` whatever the device.
        requires_grad: whether it requires a gradient, if its dtype can.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0
    dtype: str = "float32"
    fill: str = "normal"
    layout: str = "strided"
    view: str = ""
    storage: int = 0
    place: str = "device"
    requires_grad: bool = False


@dataclass(frozen=True)
class Mark:
    """A value without a plain-data form: kind "dtype", "device", "generator", and so on."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Call:
    """An op of aten with arguments: plain values, `TensorSpec` and `Mark`, or lists of these."""

    op: str
    arguments: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns one line; `from_json` is the inverse."""
        return json.dumps([self.op, _packed(self.arguments), _packed(self.keywords)])

    @classmethod
    def from_json(cls, text: str) -> Call:
        """Parses a line of `to_json`."""
        op, arguments, keywords = json.loads(text)
        return cls(op, _unpacked(arguments), _unpacked(keywords))

    @property
    def function(self) -> Any:
        """The op as a callable."""
        name, _, overload = self.op.removeprefix("aten::").partition(".")
        return getattr(getattr(torch.ops.aten, name), overload or "default")

    @property
    def is_mixed(self) -> bool:
        """Whether arguments are on several devices, so that the CPU's result is no reference."""
        text = self.to_json()
        keys = ('["generator", ', '["device", ', '"place": ')
        return any(f'{key}"{name}"' in text for key in keys for name in ("cpu", "meta"))

    @property
    def names_device(self) -> bool:
        """Whether an argument is on the device or names it; otherwise no npu kernel is called."""
        text = self.to_json()
        keys = ('["generator", "device"', '["device", "device"', '["storage", ')
        return any(key in text for key in (*keys, '"place": "device"'))

    def build(self) -> tuple[list[Any], dict[str, Any]]:
        """Creates the arguments on the CPU, equal each time."""
        made: dict[TensorSpec, torch.Tensor] = {}
        storages: dict[int, torch.Tensor] = {}

        def value(leaf: Any) -> Any:
            if not isinstance(leaf, TensorSpec):
                return leaf
            if leaf.place != "device":
                return Mark("tensor", leaf)
            if leaf not in made:
                made[leaf] = _tensor(leaf, storages)
            return made[leaf]

        arguments, keywords = tree_map(
            value,
            (self.arguments, self.keywords),
            is_leaf=lambda leaf: isinstance(leaf, TensorSpec | Mark),
        )
        return arguments, keywords


def place(built: tuple[list[Any], dict[str, Any]], device: str) -> Any:
    """Returns the values of `Call.build` as new tensors on ``device``."""
    return tree_map(
        lambda leaf: _meaning(leaf, device) if isinstance(leaf, Mark) else leaf,
        copy_to(built, device),
        is_leaf=lambda leaf: isinstance(leaf, Mark),
    )


def _meaning(mark: Mark, device: str) -> Any:
    if mark.kind in ("dtype", "layout", "memory_format"):
        return getattr(torch, mark.value)
    if mark.kind == "device":
        return torch.device(device if mark.value == "device" else mark.value)
    if mark.kind == "generator":
        return torch.Generator(device if mark.value == "device" else mark.value).manual_seed(5)
    if mark.kind == "storage":
        return torch.arange(mark.value, dtype=torch.uint8, device=device).untyped_storage()
    if mark.kind == "complex":
        return complex(*mark.value)
    assert mark.kind == "tensor"
    there = dataclasses.replace(mark.value, place="device")
    return _tensor(there, {}).to(mark.value.place)


def _tensor(spec: TensorSpec, storages: dict[int, torch.Tensor]) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    if spec.layout != "strided":
        return _other_layout(_filled(spec, _elements(spec.shape)).reshape(spec.shape), spec.layout)
    if spec.strides is None:
        strides = _contiguous_strides(spec.shape)
    else:
        strides = spec.strides
    needed = _span(spec.shape, strides) + spec.offset
    memory = storages.get(spec.storage)
    if memory is None or memory.dtype is not dtype or memory.numel() < needed:
        memory = _filled(spec, needed)
        storages.setdefault(spec.storage, memory)
    tensor = memory.as_strided(spec.shape, strides, spec.offset)
    if spec.view == "conj" and dtype.is_complex:
        tensor = tensor.conj()
    elif spec.view == "neg" and dtype in _NEGATIVE:
        tensor = torch._neg_view(tensor)
    can_track = dtype.is_floating_point or dtype.is_complex
    return tensor.detach().requires_grad_(spec.requires_grad and can_track)


def _other_layout(dense: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns the tensor in another layout, or unchanged if that layout does not support it."""
    try:
        if layout in _QUANTIZED:
            return torch.quantize_per_tensor(dense.float(), 0.1, 3, _QUANTIZED[layout])
        if layout == "nested":
            return torch.nested.nested_tensor([dense, dense[..., :1]])
        block = (1, 1) if layout in ("sparse_bsr", "sparse_bsc") else None
        return dense.to_sparse(layout=getattr(torch, layout), blocksize=block)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return dense


def _filled(spec: TensorSpec, count: int) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    generator = torch.Generator().manual_seed(spec.storage)
    if spec.fill == "zeros":
        return torch.zeros(count, dtype=dtype)
    if spec.fill in ("small", "signed"):
        low, high = (0, 4) if spec.fill == "small" else (-5, 6)
        return torch.randint(low, high, (count,), generator=generator).to(dtype)
    values = torch.randn(count, generator=generator, dtype=torch.float64)
    if spec.fill == "special" and (dtype.is_floating_point or dtype.is_complex):
        values = torch.tensor(_SPECIAL, dtype=torch.float64).repeat(count // len(_SPECIAL) + 1)
        return values[:count].to(dtype)
    if dtype.is_complex:
        return torch.complex(values, values.flip(0)).to(dtype)
    return (values if dtype.is_floating_point else values * 4).to(dtype)


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _elements(shape: tuple[int, ...]) -> int:
    return _bounded(_span(shape, _contiguous_strides(shape)))


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return _bounded(1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True)))


def _bounded(count: int) -> int:
    if count > _CELLS:
        raise ValueError(f"a tensor of {count:,} elements is more than the {_CELLS:,} of a call")
    return count


def _packed(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return {"tensor": dataclasses.asdict(value)}
    if isinstance(value, Mark):
        return {"mark": [value.kind, _packed(value.value)]}
    if isinstance(value, dict):
        return {"keywords": {key: _packed(each) for key, each in value.items()}}
    if isinstance(value, list | tuple):
        return [_packed(each) for each in value]
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        strides = content["strides"]
        return TensorSpec(
            **{
                **content,
                "shape": tuple(content["shape"]),
                "strides": None if strides is None else tuple(strides),
            }
        )
    if kind == "mark":
        return Mark(content[0], _unpacked(content[1]))
    return {key: _unpacked(each) for key, each in content.items()}


# Op, or prefix of its name -> reason to exclude it.
EXCLUDED: dict[str, str] = {
    "aten::quantized_gru": "takes an object of torch.classes that no call can write down",
    "aten::quantized_lstm": "takes an object of torch.classes that no call can write down",
    "aten::_make_dep_token": "gives memory that nothing has written",
    "aten::_test_": "an op of torch's tests with results on the CPU by design",
    "aten::fbgemm_": "its packed weights are the address of an object, on the CPU by design",
}

# Prefix of an op's name -> reason that its outcome on the CPU is no reference. It must still not
# crash.
INCOMPARABLE: dict[str, str] = {
    "aten::_thnn_fused_": "for devices only: the CPU has no such kernel, npu does",
    "aten::_copy_from": "for devices only: the CPU has no such kernel, npu does",
    "aten::convolution_overrideable": "for devices only: the CPU has no such kernel, npu does",
    "aten::convolution_backward_overrideable": "for devices only, as above",
    "aten::quantile": "torch reads the values of q only on the CPU",
    "aten::nanquantile": "torch reads the values of q only on the CPU",
    "aten::randint_like.Tensor": "torch accepts `high` only on the CPU, for every device",
    "aten::tensor_split.tensor": "torch accepts the indices only on the CPU, for every device",
    "aten::scalar_tensor": "torch leaves out the layout if the device is the CPU",
    "aten::get_device": "returns the device",
    "aten::_shape_as_tensor": "returns a tensor on the CPU by design",
    "aten::mean.dtype_out": "torch returns another tensor than `out` if the input is quantized",
    "aten::max_pool1d": "torch has a kernel only for the CPU, of fewer dtypes than the other path",
    "aten::histc": "npu counts integers too, as CUDA does",
    "aten::native_dropout": "npu draws a mask, and the CPU checks the probability first",
    "aten::_nested_tensor_from": "npu has a kernel for more arguments than the CPU",
    "aten::to_mkldnn": "only for the CPU",
    "aten::_autocast_to_reduced_precision": "checks whether the tensor is on the CPU or on CUDA",
    "aten::choose_qparams_optimized": "returns its two numbers on the CPU by design",
    "aten::_to_cpu": "returns a tensor on the CPU by design",
    "aten::block_diag.out": "without a tensor torch creates the result on the CPU",
    "aten::_compute_linear_combination": "torch reads beyond the coefficients if there are too few",
}

# Prefix of an op's name -> number of padding values that torch's kernel reads, however many are
# given: the memory after them affects the error's class and message.
_SIDES = {"aten::reflection_pad1d_backward": 2, "aten::reflection_pad2d_backward": 4}

# Parts of names of ops with uninitialized memory in their results.
_UNDEFINED = ("empty", "resize", "aten::set")
# Torch's kernels of these polynomials return an uninitialized variable if x is NaN.
_POLYNOMIAL = "_polynomial_"
_NOT_A_NUMBER = ("NaN", '"special"')
# A factory called with one of these leaves its indices uninitialized.
_COMPRESSED = ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def is_excluded(op: str) -> bool:
    """Whether an op is excluded."""
    return op.startswith(tuple(EXCLUDED))


def is_comparable(call: Call) -> bool:
    """Whether the CPU's outcome is a reference for npu's."""
    return not (
        call.is_mixed or call.op.startswith(tuple(INCOMPARABLE)) or _has_short_padding(call)
    )


def _has_short_padding(call: Call) -> bool:
    padding = call.arguments[2] if len(call.arguments) > 2 else None
    return isinstance(padding, list) and any(
        call.op.startswith(op) and len(padding) < sides for op, sides in _SIDES.items()
    )


def is_undefined(call: Call) -> bool:
    """Whether a result's values are uninitialized memory."""
    layout = call.keywords.get("layout")
    if _POLYNOMIAL in call.op:
        return any(word in call.to_json() for word in _NOT_A_NUMBER)
    return any(part in call.op for part in _UNDEFINED) or (
        isinstance(layout, Mark) and layout.value in _COMPRESSED
    )

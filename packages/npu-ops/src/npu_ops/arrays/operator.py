"""Base class of array operators: argument checks, lazily built programs, and calls."""

from __future__ import annotations

import ctypes
import operator
import re
import tempfile
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch

import npu_runtime
from npu_ops.errors import OperatorInputError
from npu_runtime.npu import current_device
from npu_runtime.public_calls import public_call

__all__ = [
    "FLOATS",
    "ArrayOperator",
    "Layer",
    "array_of",
    "device_index",
    "per_axis",
    "shape_of",
    "size_of",
]


Array = np.ndarray[Any, Any]

FLOATS = (np.dtype(np.float16), np.dtype(np.float32))
_CODE = "operator-input"
_LARGEST = 2**31 - 1


def size_of(subject: str, name: str, value: Any, *, least: int = 1) -> int:
    """Checks a size; returns it as an integer."""
    try:
        size = operator.index(value)
    except TypeError:
        size = least - 1
    if not least <= size <= _LARGEST or isinstance(value, bool):
        raise OperatorInputError(
            f"{subject}: `{name}` must be an integer of at least {least} and below 2**31, "
            f"got {value!r}.",
            _CODE,
        )
    return size


def shape_of(subject: str, name: str, value: Any, *, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Checks a shape; returns it as a tuple of integers."""
    listed = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(listed) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise OperatorInputError(
            f"{subject}: `{name}` must be a shape of {allowed} sizes, got {value!r}.", _CODE
        )
    return tuple(size_of(subject, f"{name}[{axis}]", size) for axis, size in enumerate(listed))


def per_axis(subject: str, name: str, value: Any, axes: int, *, least: int) -> tuple[int, ...]:
    """Checks a number, or one number for each axis; returns one for each axis."""
    if not isinstance(value, Sequence):
        return (size_of(subject, name, value, least=least),) * axes
    if len(value) != axes or isinstance(value, str):
        raise OperatorInputError(
            f"{subject}: `{name}` must be one integer, or {axes}, got {value!r}.", _CODE
        )
    return tuple(size_of(subject, name, size, least=least) for size in value)


def array_of(
    subject: str, name: str, value: Any, shape: tuple[int, ...], dtypes: Sequence[np.dtype[Any]]
) -> Array:
    """Checks an array; returns it contiguous, with a copy only if needed."""
    allowed = " or ".join(str(dtype) for dtype in dtypes)
    if not isinstance(value, np.ndarray):
        raise OperatorInputError(
            f"{subject}: `{name}` must be a numpy array of shape {shape}, {allowed}, "
            f"got {type(value).__name__}. Convert it with numpy.asarray.",
            _CODE,
        )
    if value.shape != shape or value.dtype not in dtypes:
        dtype = value.dtype if value.dtype.isnative else f"{value.dtype} in foreign byte order"
        raise OperatorInputError(
            f"{subject}: `{name}` must be of shape {shape}, {allowed}, got shape {value.shape}, "
            f"{dtype}. Reshape it, or convert it with astype.",
            _CODE,
        )
    return np.ascontiguousarray(value)


def device_index(subject: str, device: Any) -> int:
    """Returns the index of the npu device that an argument names; the current one for None.

    Args:
        subject: prefix of the error message.
        device: None, "npu", "npu:0", or the vendor's name of the device in use ("NPU", "CPU").

    Raises:
        OperatorInputError: the process uses another device, or no device has that name (code
            ``operator-device``). There is no fallback to another device.
    """
    current = current_device()
    if device is None or str(device) == "npu":
        return current
    if match := re.fullmatch(r"npu:(\d+)", str(device)):
        npu_runtime.device_info(int(match[1]))  # raises for an index without a device
        return int(match[1])
    serving = npu_runtime.device_info(current).device
    if str(device).upper() not in (serving.upper(), serving.partition(".")[0].upper()):
        raise OperatorInputError(
            f"{subject}: `device` must be the device in use, {serving}, got {device!r}. Omit "
            f"`device`, or set NPU_DEVICE={device} before the program starts.",
            code="operator-device",
        )
    return current


@dataclass(frozen=True)
class Layer:
    """A layer of a program and its time in the latest run.

    Attributes:
        name: its name in the program.
        type: the kind of operation, as the device names it.
        implementation: the device's kernel.
        duration_us: microseconds.
    """

    name: str
    type: str
    implementation: str
    duration_us: int


class ArrayOperator:
    """An operator on numpy arrays; threads may share one.

    It computes in float32 for every dtype (an NPU multiplies float16 and accumulates in float32);
    the result has the arrays' dtype.
    """

    @public_call
    def __init__(self, *, profile: bool, device: Any) -> None:
        self._subject = f"npu_ops.{type(self).__name__}"
        self._profile = bool(profile)
        self._device = device_index(self._subject, device)
        self._programs: dict[Hashable, npu_runtime.Program] = {}
        self._latest: npu_runtime.Program | None = None
        self._lock = threading.Lock()

    @property
    def device(self) -> str:
        """The vendor's name of the device, for example `NPU` or `CPU`."""
        return npu_runtime.device_info(self._device).device

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the latest run with their times; empty unless `profile=True`."""
        if self._latest is None or not self._profile:
            return ()
        return tuple(
            Layer(layer.name, layer.type, layer.implementation, layer.duration_us)
            for layer in self._latest.layers()
        )

    def _program(self, key: Hashable, build: Callable[[], ov.Model]) -> npu_runtime.Program:
        """Returns the program of a key, building it at the first request."""
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._load(build())
            return self._programs[key]

    def _execute(self, program: npu_runtime.Program, arrays: Sequence[Array]) -> Array:
        """Runs a program on arrays without copying them."""
        (result,) = program.run([_tensor_over(array) for array in arrays], output_device="cpu")
        self._latest = program
        return result.numpy()

    def _load(self, model: ov.Model) -> npu_runtime.Program:
        with tempfile.TemporaryDirectory(prefix="npu-arrays-") as place:
            path = Path(place) / "model.xml"
            ov.serialize(model, str(path), str(path.with_suffix(".bin")))
            return npu_runtime.load_program(
                path,
                name=self._subject,
                options=_options(self.device),
                device_index=self._device,
                profiling=self._profile,
            )


def _options(device: str) -> dict[str, str]:
    """Returns properties that set the precision: some devices default to bf16."""
    is_npu = device.partition(".")[0] == "NPU"
    return {
        "INFERENCE_PRECISION_HINT": "f16" if is_npu else "f32",
        "PERFORMANCE_HINT": "LATENCY",
    } | ({} if is_npu else {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"})


def _tensor_over(array: Array) -> torch.Tensor:
    """Returns a tensor over an array's memory, which programs only read."""
    if not array.flags.writeable:
        # torch warns about read-only memory; a second view of the same bytes is not marked
        # read-only.
        bytes_ = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
        array = np.frombuffer(memoryview(bytes_), dtype=array.dtype).reshape(array.shape)
    return torch.from_numpy(array)

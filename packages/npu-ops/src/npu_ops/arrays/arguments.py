"""What array operators ask of their arguments: sizes, shapes, dtypes, devices.

What is computed with them is in the families' own files.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import npu_runtime
from npu_ops.errors import OperatorInputError
from npu_runtime.npu import current_device

__all__ = ["FLOATS", "array_of", "device_index", "per_axis", "shape_of", "size_of"]

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
            f"{subject}: {name} must be an integer of at least {least} and below 2**31; "
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
            f"{subject}: {name} must be a shape of {allowed} sizes; got {value!r}.", _CODE
        )
    return tuple(size_of(subject, f"{name}[{axis}]", size) for axis, size in enumerate(listed))


def per_axis(subject: str, name: str, value: Any, axes: int, *, least: int) -> tuple[int, ...]:
    """Checks a number, or one number for each axis; returns one for each axis."""
    if not isinstance(value, Sequence):
        return (size_of(subject, name, value, least=least),) * axes
    if len(value) != axes or isinstance(value, str):
        raise OperatorInputError(
            f"{subject}: {name} must be one integer, or {axes}; got {value!r}.", _CODE
        )
    return tuple(size_of(subject, name, size, least=least) for size in value)


def array_of(
    subject: str, name: str, value: Any, shape: tuple[int, ...], dtypes: Sequence[np.dtype[Any]]
) -> Array:
    """Checks an array; returns it contiguous, which copies only what is not."""
    allowed = " or ".join(str(dtype) for dtype in dtypes)
    if not isinstance(value, np.ndarray):
        raise OperatorInputError(
            f"{subject}: {name} must be a numpy array of shape {shape}, {allowed}; "
            f"got {type(value).__name__}. Convert it with numpy.asarray.",
            _CODE,
        )
    if value.shape != shape or value.dtype not in dtypes:
        dtype = value.dtype if value.dtype.isnative else f"{value.dtype} in foreign byte order"
        raise OperatorInputError(
            f"{subject}: {name} must be of shape {shape}, {allowed}; got shape {value.shape}, "
            f"{dtype}. Reshape it, or convert it with astype.",
            _CODE,
        )
    return np.ascontiguousarray(value)


def device_index(subject: str, device: Any) -> int:
    """The index of the npu device that an argument names; the current one for None.

    Args:
        subject: for the message.
        device: None, "npu", "npu:0", or the vendor's name of the device that serves ("NPU", "CPU").

    Raises:
        OperatorInputError: another device serves, or no device has that name (code
            ``operator-device``). No other device is put in its place.
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
            f"{subject}: device {device!r} does not serve, {serving} does. Leave device out, or "
            f"set NPU_DEVICE={device} before the program starts.",
            code="operator-device",
        )
    return current

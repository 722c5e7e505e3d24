"""What all array operators share: programs made when first needed, and running them on arrays.

The families' own files say what their programs compute.
"""

from __future__ import annotations

import ctypes
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
from npu_ops.arrays.arguments import Array, device_index
from npu_runtime.public_calls import public_call

__all__ = ["ArrayOperator", "Layer"]


@dataclass(frozen=True)
class Layer:
    """A layer of a program and its time in the latest run.

    Attributes:
        name: in the program.
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

    It computes in float32 whatever the arrays' dtype (an NPU multiplies float16 and adds up in
    float32), and its result has their dtype.
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
        """The vendor's name of the device that computes, for example `NPU` or `CPU`."""
        return npu_runtime.device_info(self._device).device

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the latest run with their times; empty without `profile=True`."""
        if self._latest is None or not self._profile:
            return ()
        return tuple(
            Layer(layer.name, layer.type, layer.implementation, layer.duration_us)
            for layer in self._latest.layers()
        )

    def _program(self, key: Hashable, build: Callable[[], ov.Model]) -> npu_runtime.Program:
        """The program of a key, built by the first call that asks for it."""
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._load(build())
            return self._programs[key]

    def _execute(self, program: npu_runtime.Program, arrays: Sequence[Array]) -> Array:
        """Runs a program on arrays, which it reads where they are."""
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
    """Properties that say what is computed in: devices differ in their defaults, some are bf16."""
    is_npu = device.partition(".")[0] == "NPU"
    return {
        "INFERENCE_PRECISION_HINT": "f16" if is_npu else "f32",
        "PERFORMANCE_HINT": "LATENCY",
    } | ({} if is_npu else {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"})


def _tensor_over(array: Array) -> torch.Tensor:
    """A tensor over an array's memory, which programs only read."""
    if not array.flags.writeable:
        # torch warns of memory that it may not write; a second view of the same bytes has no flag.
        bytes_ = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
        array = np.frombuffer(memoryview(bytes_), dtype=array.dtype).reshape(array.shape)
    return torch.from_numpy(array)

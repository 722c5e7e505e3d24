"""Runs an exported model: on arrays by OpenVINO alone, on tensors by npu_runtime.

Checking a call and putting results together is npu_compiler.exported.load's work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import openvino as ov
from openvino.preprocess import PrePostProcessor

from npu_compiler.config import read_settings
from npu_compiler.device_options import WITHOUT_SNIPPETS, device_options, is_snippets_failure
from npu_compiler.errors import ExportError
from npu_compiler.exported.manifest import Manifest, PortSpec

__all__ = ["ArrayRunner", "Runner", "tensor_runner"]

_logger = logging.getLogger(__name__)
_Loaded = TypeVar("_Loaded")


class Runner(Protocol):
    """One way to run a model."""

    def describe(self, port: PortSpec, value: Any) -> tuple[str, tuple[int, ...]]:
        """Returns dtype and shape of a value that is given for an input."""

    def run(self, values: Sequence[Any], *, as_arrays: bool) -> list[Any]:
        """Runs on the values of the IR's inputs; returns its outputs."""


class ArrayRunner:
    """By OpenVINO alone, on numpy arrays."""

    def __init__(self, path: Path, manifest: Manifest, device: str | None) -> None:
        """Compiles a model.

        Args:
            path: of the IR.
            manifest: of the folder.
            device: OpenVINO's name of it, or None for the default.

        Raises:
            ExportError: [export-device] for a device that is not there, [export-load] for a model
                that OpenVINO cannot read or the device cannot run.
        """
        core = ov.Core()
        chosen = _choose_device(core, device or read_settings().device)
        capabilities = core.get_property(chosen, "OPTIMIZATION_CAPABILITIES")
        options = device_options(
            manifest.precision, device=chosen, has_float16="FP16" in capabilities
        )
        try:
            model = _exchange_float32(core.read_model(str(path)))
            self._compiled = _tolerant(
                lambda chosen_options: core.compile_model(model, chosen, chosen_options), options
            )
        except RuntimeError as failure:
            text = " ".join(str(failure).split())
            raise ExportError(
                f"npu_compiler.load: {chosen} must take the model; got {text[:300]}. Choose "
                "another device, or export again with this version of OpenVINO.",
                code="export-load",
            ) from failure
        self._own = threading.local()

    def describe(self, port: PortSpec, value: Any) -> tuple[str, tuple[int, ...]]:
        """Returns dtype and shape of an array."""
        return _described(port, value)

    def run(self, values: Sequence[Any], *, as_arrays: bool) -> list[Any]:
        """Runs on arrays; results are new arrays."""
        assert as_arrays
        request = getattr(self._own, "request", None)
        if request is None:
            request = self._own.request = self._compiled.create_infer_request()
        for index, value in enumerate(values):
            array = np.ascontiguousarray(value).reshape(np.shape(value))
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        request.infer()
        return [
            np.array(request.get_output_tensor(index).data)
            for index in range(len(self._compiled.outputs))
        ]


def tensor_runner(path: Path, manifest: Manifest) -> Runner:
    """Returns a runner on tensors and arrays, by torch's npu device."""
    import torch

    import npu_runtime
    from npu_compiler.programs.precision import compile_options

    program = _tolerant(
        lambda options: npu_runtime.load_program(path, name=manifest.name, options=options),
        compile_options(manifest.precision),
    )
    used = [port for port in manifest.inputs if port.port is not None]

    class TensorRunner:
        def describe(self, port: PortSpec, value: Any) -> tuple[str, tuple[int, ...]]:
            if not isinstance(value, torch.Tensor):
                return _described(port, value)
            return str(value.dtype).removeprefix("torch."), tuple(value.shape)

        def run(self, values: Sequence[Any], *, as_arrays: bool) -> list[Any]:
            tensors = [
                value.detach().contiguous()
                if isinstance(value, torch.Tensor)
                else torch.from_numpy(np.array(value)).to(getattr(torch, port.dtype))
                for port, value in zip(used, values, strict=True)
            ]
            results = program.run(tensors, output_device=None if tensors else "cpu")
            if not as_arrays:
                return list(results)
            floats = [r.float() if r.dtype is torch.bfloat16 else r for r in results]
            return [result.cpu().numpy() for result in floats]

    return TensorRunner()


def _tolerant(load: Callable[[dict[str, str]], _Loaded], options: dict[str, str]) -> _Loaded:
    """Compiles; if the CPU plugin's generator of kernels fails on the model, without that."""
    try:
        return load(options)
    except RuntimeError as failure:
        if not is_snippets_failure(failure):
            raise
        _logger.info("compiling without snippets, which fail on the model: %s", failure)
    return load({**options, **WITHOUT_SNIPPETS})


def _described(port: PortSpec, value: Any) -> tuple[str, tuple[int, ...]]:
    array = np.asarray(value)
    dtype = str(array.dtype)
    if port.dtype == "bfloat16" and dtype == "float32":
        dtype = "bfloat16"
    return dtype, tuple(array.shape)


def _choose_device(core: ov.Core, wanted: str | None) -> str:
    present = core.available_devices
    if wanted is None:
        return next((name for name in present if name.partition(".")[0] == "NPU"), "CPU")
    if not any(name == wanted or name.partition(".")[0] == wanted for name in present):
        raise ExportError(
            f"npu_compiler.load: the device must be one of {', '.join(present)}; got {wanted!r}. "
            "Choose one of these, or leave device and NPU_DEVICE out.",
            code="export-device",
        )
    return wanted


def _exchange_float32(model: ov.Model) -> ov.Model:
    """Lets bfloat16 ports take and give float32: numpy has no bfloat16."""
    steps = PrePostProcessor(model)
    is_needed = False
    for ports, step in ((model.inputs, steps.input), (model.outputs, steps.output)):
        for index, port in enumerate(ports):
            if port.get_element_type() == ov.Type.bf16:
                step(index).tensor().set_element_type(ov.Type.f32)
                is_needed = True
    return steps.build() if is_needed else model

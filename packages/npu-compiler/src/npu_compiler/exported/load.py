"""Loading of exported models: runners of their programs and the model for callers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import openvino as ov
from openvino.preprocess import PrePostProcessor

from npu_compiler.config import read_settings
from npu_compiler.errors import ExportError
from npu_compiler.exported.compiled_shapes import (
    ByShapes,
    KeptModel,
    Shapes,
    has_one_shape,
    with_fixed_shapes,
)
from npu_compiler.exported.manifest import PROGRAM, Manifest, PortSpec, build, read_manifest
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs.blobs import AheadBlobs
from npu_compiler.programs.device_options import device_options
from npu_compiler.programs.index_checks import check_arrays, check_indices

__all__ = ["ArrayRunner", "LoadedModel", "Runner", "load", "tensor_runner"]


class Runner(Protocol):
    """A way to run a model (protocol)."""

    @property
    def from_cache(self) -> bool:
        """Whether the device compiled nothing so far."""

    @property
    def compiled_because(self) -> str | None:
        """Reason why the folder's blobs were not used; None if they were, or there are none."""

    def describe(self, port: PortSpec, value: Any) -> tuple[str, tuple[int, ...]]:
        """Returns dtype and shape of an input value."""

    def run(self, values: Sequence[Any], *, as_arrays: bool) -> list[Any]:
        """Runs on the values of the IR's inputs; returns its outputs."""


class ArrayRunner:
    """Runs a model on numpy arrays, only by OpenVINO."""

    def __init__(self, path: Path, manifest: Manifest, device: str | None) -> None:
        """Compiles an IR for a device of OpenVINO, by default the best one.

        Raises:
            ExportError: [export-device] for an absent device, [export-load] for a model that
                OpenVINO cannot read or the device cannot run.
        """
        core = openvino_core()
        chosen = _choose_device(device or read_settings().device)
        capabilities = core.get_property(chosen, "OPTIMIZATION_CAPABILITIES")
        options = {
            **device_options(manifest.precision, device=chosen, capabilities=capabilities),
            **manifest.options_for(chosen),
        }
        ports = (*manifest.inputs, *manifest.outputs)
        is_exchanged = any(port.dtype == "bfloat16" for port in ports)
        # A blob's ports are bfloat16, which arrays cannot be.
        served = "" if is_exchanged else _architecture(chosen)
        self._blobs = AheadBlobs(path.parent, manifest.blobs, served)
        imported: list[ov.CompiledModel] = []

        def compile_model(
            shapes: Shapes | None, given: dict[str, str], blobs: Path | None
        ) -> ov.CompiledModel:
            kept = {} if blobs is None else {"CACHE_DIR": str(blobs)}
            if is_exchanged or shapes is not None:
                # With its weights: without them OpenVINO does not find the blob of an in-memory
                # model again.
                model = core.read_model(str(path))
                if shapes is not None:
                    model.reshape(dict(enumerate(map(ov.PartialShape, shapes))))
                model = _exchange_float32(model) if is_exchanged else model
                return core.compile_model(model, chosen, {**kept, **given})
            size = {} if blobs is None else {"CACHE_MODE": "OPTIMIZE_SIZE"}
            return core.compile_model(str(path), chosen, {**kept, **size, **given})

        def import_blob(blob: Path) -> ov.CompiledModel:
            # As the compiler wrote it, without the plugin's trailer.
            raw = {"NPU_IMPORT_RAW_BLOB": "YES"} if chosen.startswith("NPU") else {}
            imported.append(core.import_model(blob.read_bytes(), chosen, raw))
            return imported[-1]

        def compile_here(shapes: Shapes | None) -> ov.CompiledModel:
            known = {"device": _identity(chosen), "options": options, "by": "array"}
            facts = known if shapes is None else {**known, "shapes": shapes}
            try:
                return KeptModel(path, facts).load(
                    partial(compile_model, shapes), options, device=chosen,
                    from_cache=_is_from_cache,
                )  # fmt: skip
            except RuntimeError as failure:
                text = " ".join(str(failure).split())
                raise ExportError(
                    f"npu_compiler.load: {chosen} must accept the model, got {text[:300]}. Choose "
                    "another device, or export again with this version of OpenVINO.",
                    code="export-load",
                ) from failure

        def load(shapes: Shapes | None) -> ov.CompiledModel:
            compile_model = partial(compile_here, shapes)
            if shapes is not None:  # a folder with blobs has one shape
                return compile_model()
            return self._blobs.load(PROGRAM, path, import_blob, compile_model)

        def is_ready(compiled: ov.CompiledModel) -> bool:
            return any(one is compiled for one in imported) or _is_from_cache(compiled)

        self._programs = ByShapes(load, manifest, is_ready, one_shape=has_one_shape(chosen))
        self._own = threading.local()
        self._name, self._checks = manifest.name, manifest.index_checks

    @property
    def from_cache(self) -> bool:
        """Whether the device compiled nothing so far."""
        return self._programs.from_cache

    @property
    def compiled_because(self) -> str | None:
        """Reason why the folder's blobs were not used; None if they were, or there are none."""
        return self._blobs.compiled_because

    def describe(self, port: PortSpec, value: Any) -> tuple[str, tuple[int, ...]]:
        """Returns dtype and shape of an array."""
        return _described(port, value)

    def run(self, values: Sequence[Any], *, as_arrays: bool) -> list[Any]:
        """Runs on arrays; results are new arrays."""
        assert as_arrays
        arrays = [np.ascontiguousarray(value).reshape(np.shape(value)) for value in values]
        compiled = self._programs.get([array.shape for array in arrays])
        if getattr(self._own, "compiled", None) is not compiled:
            self._own.compiled, self._own.request = compiled, compiled.create_infer_request()
        request = self._own.request
        check_arrays(self._name, self._checks, arrays, None)
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        request.infer()
        results = [
            np.array(request.get_output_tensor(index).data)
            for index in range(len(compiled.outputs))
        ]
        check_arrays(self._name, self._checks, arrays, results)
        return results


def tensor_runner(path: Path, manifest: Manifest) -> Runner:
    """Returns a runner on tensors and arrays, by torch's npu device."""
    import torch

    import npu_runtime
    from npu_compiler.programs.precision import compile_options
    from npu_runtime import info, layer_recording

    def load_program(
        shapes: Shapes | None, given: dict[str, str], blobs: Path | None
    ) -> npu_runtime.Program:
        kept = {} if blobs is None else {"CACHE_MODE": "OPTIMIZE_SIZE"}
        with with_fixed_shapes(path, shapes, None if blobs is None else blobs.parent) as model:
            return npu_runtime.load_program(
                model, name=manifest.name, options={**kept, **given}, cache_dir=blobs
            )

    device = npu_runtime.device_info()
    options = {**compile_options(manifest.precision), **manifest.options_for(device.device)}
    used = [port for port in manifest.inputs if port.port is not None]

    # A blob records no layers.
    can_serve = bool(manifest.blobs) and not layer_recording.is_wanted()
    architecture = info.npu_architecture() if can_serve else ""
    blobs = AheadBlobs(path.parent, manifest.blobs, architecture)

    def import_blob(blob: Path) -> npu_runtime.Program:
        return npu_runtime.load_program(blob, name=manifest.name, options=options)

    def compile_here(shapes: Shapes | None) -> npu_runtime.Program:
        known = [device.driver, device.device, device.full_name, device.driver_version]
        served = {"device": known, "options": options, "by": "program"}
        facts = served if shapes is None else {**served, "shapes": shapes}
        program: npu_runtime.Program = KeptModel(path, facts).load(
            partial(load_program, shapes), options, device=device.device,
            from_cache=_loaded_from_cache,
        )  # fmt: skip
        return program

    def load(shapes: Shapes | None) -> npu_runtime.Program:
        compile_model = partial(compile_here, shapes)
        if shapes is not None:  # a folder with blobs has one shape
            program = compile_model()
        else:
            program = blobs.load(PROGRAM, path, import_blob, compile_model)
        check_indices(program, manifest.index_checks)
        return program

    programs = ByShapes(load, manifest, _loaded_from_cache, one_shape=has_one_shape(device.device))

    class TensorRunner:
        @property
        def from_cache(self) -> bool:
            return programs.from_cache

        @property
        def compiled_because(self) -> str | None:
            return blobs.compiled_because

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
            program = programs.get([tuple(tensor.shape) for tensor in tensors])
            results = program.run(tensors, output_device=None if tensors else "cpu")
            if not as_arrays:
                return list(results)
            floats = [r.float() if r.dtype is torch.bfloat16 else r for r in results]
            return [result.cpu().numpy() for result in floats]

    return TensorRunner()


def _described(port: PortSpec, value: Any) -> tuple[str, tuple[int, ...]]:
    array = np.asarray(value)
    dtype = str(array.dtype)
    if port.dtype == "bfloat16" and dtype == "float32":
        dtype = "bfloat16"
    return dtype, tuple(array.shape)


def _loaded_from_cache(program: Any) -> bool:
    return bool(program.loaded_from_cache)


def _is_from_cache(compiled: ov.CompiledModel) -> bool:
    return bool(compiled.get_property("LOADED_FROM_CACHE"))


def _identity(device: str) -> list[str]:
    """Returns the device, its plugin and its driver, if it has one."""
    core = openvino_core()
    plugins = core.get_versions(device).values()
    facts = [device, core.get_property(device, "FULL_DEVICE_NAME")]
    facts += [str(plugin.build_number) for plugin in plugins]
    if "NPU_DRIVER_VERSION" in core.get_property(device, "SUPPORTED_PROPERTIES"):
        facts.append(str(core.get_property(device, "NPU_DRIVER_VERSION")))
    return facts


def _architecture(device: str) -> str:
    """Returns the generation of an NPU; "" for another device."""
    if not device.startswith("NPU"):
        return ""
    return str(openvino_core().get_property(device, "DEVICE_ARCHITECTURE"))


def _choose_device(wanted: str | None) -> str:
    present = openvino_core().available_devices
    if wanted is None:
        return next((name for name in present if name.partition(".")[0] == "NPU"), "CPU")
    if not any(name == wanted or name.partition(".")[0] == wanted for name in present):
        raise ExportError(
            f"npu_compiler.load: `device` must be one of {', '.join(present)}, got {wanted!r}. "
            "Choose one of these, or leave device and NPU_DEVICE out.",
            code="export-device",
        )
    return wanted


def _exchange_float32(model: ov.Model) -> ov.Model:
    """Converts bfloat16 ports to float32, because numpy has no bfloat16."""
    steps = PrePostProcessor(model)
    is_needed = False
    for ports, step in ((model.inputs, steps.input), (model.outputs, steps.output)):
        for index, port in enumerate(ports):
            if port.get_element_type() == ov.Type.bf16:
                step(index).tensor().set_element_type(ov.Type.f32)
                is_needed = True
    return steps.build() if is_needed else model


def load(path: str | os.PathLike[str], *, device: str | None = None) -> LoadedModel:
    """Loads a model of npu_compiler.export.

    Does not import torch. In a process that has imported torch the model runs on its npu device,
    and takes tensors as well as arrays.

    Args:
        path: the folder.
        device: OpenVINO's name of the device: NPU, GPU or CPU. By default that of NPU_DEVICE, or
            the NPU if there is one. In a process with torch, its npu device is used.

    Raises:
        ExportError: [export-absent], [export-format] or [export-corrupt] for a missing, outdated or
            damaged folder; [export-device] for an absent device, [export-load] for a device that
            cannot run the model. In a process with torch npu_runtime.ProgramError.
    """
    if device is not None and not isinstance(device, str):
        raise ExportError(
            "npu_compiler.load: `device` must be a name of OpenVINO's, such as 'CPU', got "
            f"{type(device).__name__}. Omit it for the default.",
            code="export-device",
        )
    folder = Path(path)
    return LoadedModel(folder, read_manifest(folder), device)


class LoadedModel:
    """An exported model, called like the original module; thread-safe."""

    def __init__(self, folder: Path, manifest: Manifest, device: str | None) -> None:
        """Compiles a checked folder; see load."""
        self.manifest = manifest
        self._model = folder / "model.xml"
        self._device = device
        self._arrays: Runner | None = None
        self._tensors: Runner | None = None
        if "torch" in sys.modules and device is None:
            self._tensors = tensor_runner(self._model, manifest)
        else:
            self._arrays = ArrayRunner(self._model, manifest, device)

    @property
    def inputs(self) -> tuple[PortSpec, ...]:
        """Name, dtype and shape of each input, in the order of positional arguments."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[PortSpec, ...]:
        """Dtype and shape of each output."""
        return self.manifest.outputs

    @property
    def precision(self) -> str:
        """Precision of the computation."""
        return self.manifest.precision

    @property
    def from_cache(self) -> bool:
        """Whether the device compiled nothing, because a blob or a cached program served."""
        return self._runner_in_use.from_cache

    @property
    def compiled_because(self) -> str | None:
        """Reason why a folder with blobs was compiled on its NPU; None if it was not."""
        return self._runner_in_use.compiled_because

    @property
    def _runner_in_use(self) -> Runner:
        runner = self._arrays or self._tensors
        assert runner is not None
        return runner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model once.

        Args:
            args: arrays or tensors of the inputs, in order. Arrays of bfloat16 inputs are float32.
            kwargs: inputs by name.

        Returns:
            The module's result, with arrays for arrays and tensors for tensors, on the inputs'
            device. Results of different calls share no memory.

        Raises:
            ExportError: [export-input] for a missing or extra input, or another dtype or shape.
        """
        values = self._bind(args, kwargs)
        are_arrays = all(_is_array(value) for value in values)
        runner = self._runner(are_arrays)
        described = [
            runner.describe(port, value) for port, value in zip(self.inputs, values, strict=True)
        ]
        self.manifest.check_call(described)
        used = [
            value for port, value in zip(self.inputs, values, strict=True) if port.port is not None
        ]
        results = runner.run(used, as_arrays=are_arrays)
        return build(self.manifest.structure, results)

    def _runner(self, are_arrays: bool) -> Runner:
        if are_arrays and self._arrays is not None:
            return self._arrays
        if self._tensors is None:
            if self._device is not None:
                raise ExportError(
                    f"{self.manifest.name}: inputs must be numpy arrays for device {self._device}, "
                    "got a tensor. Load it without device, or pass numpy arrays.",
                    code="export-input",
                )
            self._tensors = tensor_runner(self._model, self.manifest)
        return self._tensors

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        names = [port.name for port in self.inputs]
        given = dict(zip(names, args, strict=False)) | kwargs
        doubled = [name for name in names[: len(args)] if name in kwargs]
        if len(args) > len(names) or doubled or set(given) != set(names):
            received = ", ".join([*(f"#{index}" for index in range(len(args))), *kwargs]) or "none"
            raise ExportError(
                f"{self.manifest.name}: inputs must be {', '.join(names)}, each once, got "
                f"{received}. "
                "Pass these in order or by name.",
                code="export-input",
            )
        return [given[name] for name in names]

    def __repr__(self) -> str:
        ports = f"{len(self.inputs)} in, {len(self.outputs)} out"
        return f"LoadedModel({self.manifest.name!r}, {self.precision}, {ports})"


def _is_array(value: Any) -> bool:
    # Without torch there are no tensors; with it, anything else is treated as an array.
    torch = sys.modules.get("torch")
    return torch is None or not isinstance(value, torch.Tensor)

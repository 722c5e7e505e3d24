"""npu_compiler.load: an exported model on arrays, without torch, or on tensors, with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from npu_compiler.errors import ExportError
from npu_compiler.exported.manifest import Manifest, PortSpec, build, read_manifest
from npu_compiler.exported.runners import ArrayRunner, Runner, tensor_runner

__all__ = ["LoadedModel", "load"]


def load(path: str | os.PathLike[str], *, device: str | None = None) -> LoadedModel:
    """Loads what npu_compiler.export wrote.

    Nothing of torch is imported. In a process that has imported torch the model runs as other
    programs do, and takes tensors as well as arrays.

    Args:
        path: the folder.
        device: OpenVINO's name of the device: NPU, GPU or CPU. By default that of NPU_DEVICE, or
            the NPU where there is one. In a process with torch its npu device serves.

    Raises:
        ExportError: [export-absent], [export-format] or [export-corrupt] for a folder that is not
            as it was exported; [export-device] for a device that is not there, [export-load] for
            one that cannot run the model. In a process with torch npu_runtime.ProgramError.
    """
    if device is not None and not isinstance(device, str):
        raise ExportError(
            "npu_compiler.load: device must be a name of OpenVINO's, such as 'CPU'; got "
            f"{type(device).__name__}. Leave it out for the default.",
            code="export-device",
        )
    folder = Path(path)
    return LoadedModel(folder, read_manifest(folder), device)


class LoadedModel:
    """An exported model, to be called as the module was; threads may share it."""

    def __init__(self, folder: Path, manifest: Manifest, device: str | None) -> None:
        """Compiles a folder that was checked; see load."""
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
        """In which the model computes."""
        return self.manifest.precision

    @property
    def from_cache(self) -> bool:
        """Whether the device compiled nothing: a blob or an earlier load had left what it needs."""
        return self._runner_in_use.from_cache

    @property
    def compiled_because(self) -> str | None:
        """Why a folder with blobs was compiled on its NPU all the same; None where it was not."""
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
            What the module returned, with arrays for arrays and tensors for tensors, which live
            where the inputs do. Nothing shares memory with another call's result.

        Raises:
            ExportError: [export-input] for one too many, missing, or of another dtype or shape.
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
                    f"{self.manifest.name}: loaded for the device {self._device} it takes arrays; "
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
                f"{self.manifest.name}: inputs are {', '.join(names)}, each once; got {received}. "
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

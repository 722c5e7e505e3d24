"""Manifest of an exported folder: a JSON file next to the IR that describes the model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_compiler.errors import ExportError
from npu_compiler.programs.blobs import AheadBlob, fingerprint, read_blob_records
from npu_compiler.programs.device_options import PRECISIONS
from npu_compiler.programs.index_checks import read_records

__all__ = ["FILE_NAME", "FORMAT", "PROGRAM", "Manifest", "PortSpec", "build", "read_manifest"]

FORMAT = 1
FILE_NAME = "manifest.json"
PROGRAM = "model"  # name of the folder's only program in blob records


@dataclass(frozen=True)
class PortSpec:
    """An input or output of the model."""

    name: str  # parameter of the model's forward; outputs are numbered
    dtype: str  # torch's name, as float32
    # A number per dimension, or the name of a dynamic size; equal names are equal sizes. None for a
    # size that follows from others.
    shape: tuple[int | str | None, ...]
    # Index among the inputs of the IR; None for an input that the model does not read.
    port: int | None


@dataclass(frozen=True)
class Manifest:
    """The description of an exported model."""

    name: str  # class of the module
    precision: str  # of the computation
    compression: str | None  # int8 or int4 where weights were compressed, else None
    # inputs, outputs: in order
    inputs: tuple[PortSpec, ...]
    outputs: tuple[PortSpec, ...]
    # Structure of the result: {"tensor": index of the output}, {"value": a plain value}, {"list":
    # [...]}, {"tuple": [...]} or {"dict": {...}}.
    structure: Mapping[str, Any]
    # Name of a dynamic size -> least and greatest value, None for no bound.
    sizes: Mapping[str, tuple[int, int | None]]
    versions: Mapping[str, str]  # package -> version that wrote it
    files: Mapping[str, Mapping[str, Any]]  # file name -> size and checksum
    # Index checks of each run, with ports of the IR; see npu_compiler.programs.index_checks.
    index_checks: tuple[Mapping[str, Any], ...] = ()
    # Options that OpenVINO's CPU plugin needs for correct results.
    device_options: Mapping[str, str] = field(default_factory=dict)
    blobs: tuple[AheadBlob, ...] = ()  # blobs of the program, compiled ahead of time for NPUs
    verified: str = "no"  # "yes" if its results matched torch's at export, else the reason
    format: int = FORMAT  # of this file

    def write(self, folder: Path) -> None:
        """Writes the manifest into a folder."""
        (folder / FILE_NAME).write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    def options_for(self, device: str) -> Mapping[str, str]:
        """Returns the options that a device's compiler needs besides those of the precision."""
        return self.device_options if device.startswith(("CPU", "SIM")) else {}

    def check_call(self, inputs: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        """Checks dtypes and shapes of a call's inputs; [export-input] names the fault."""
        known: dict[str, int] = {}
        for port, (dtype, shape) in zip(self.inputs, inputs, strict=True):
            if dtype != port.dtype:
                raise self._input_error(port, f"have dtype {port.dtype}", f"{dtype}", "Convert it")
            if len(shape) != len(port.shape) or not all(
                self._fits(size, wanted, known)
                for size, wanted in zip(shape, port.shape, strict=True)
            ):
                raise self._input_error(
                    port, f"have shape {self._shape_text(port, known)}", f"{shape}", "Reshape it"
                )

    def _fits(self, size: int, wanted: int | str | None, known: dict[str, int]) -> bool:
        if wanted is None:
            return True
        if isinstance(wanted, int):
            return size == wanted
        least, greatest = self.sizes.get(wanted, (0, None))
        in_range = size >= least and (greatest is None or size <= greatest)
        return in_range and known.setdefault(wanted, size) == size

    def _shape_text(self, port: PortSpec, known: Mapping[str, int]) -> str:
        texts = []
        for size in port.shape:
            if not isinstance(size, str):
                texts.append("any" if size is None else str(size))
                continue
            least, greatest = self.sizes.get(size, (0, None))
            bounds = f">= {least}" if greatest is None else f"{least} to {greatest}"
            found = f", here {known[size]}" if size in known else ""
            texts.append(f"{size} ({bounds}{found})")
        return f"({', '.join(texts)})"

    def _input_error(self, port: PortSpec, rule: str, received: str, step: str) -> ExportError:
        return ExportError(
            f"{self.name}: input {port.name!r} must {rule}, got {received}. {step}.",
            code="export-input",
        )


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks a folder's manifest and files.

    Raises:
        ExportError: [export-absent] if it is not an exported folder, [export-format] for another
            format, [export-corrupt] if a file changed.
    """
    try:
        raw = json.loads((folder / FILE_NAME).read_text())
    except (FileNotFoundError, NotADirectoryError) as missing:
        raise ExportError(
            f"npu_compiler.load: the path must be a folder that npu_compiler.export wrote, got "
            f"{str(folder)!r} without {FILE_NAME}. Export the model again.",
            code="export-absent",
        ) from missing
    except (OSError, ValueError, RecursionError) as failure:
        raise _corrupt(folder, f"{FILE_NAME} cannot be read: {failure}") from failure
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else raw
        raise ExportError(
            f"npu_compiler.load: {folder} must have format {FORMAT}, got {found!r}. Export the "
            "model again with this version of npu-compiler.",
            code="export-format",
        )
    try:
        manifest = Manifest(
            **{
                **raw,
                "inputs": tuple(_port(port) for port in raw["inputs"]),
                "outputs": tuple(_port(port) for port in raw["outputs"]),
                "sizes": {name: tuple(bounds) for name, bounds in raw["sizes"].items()},
                "index_checks": read_records(raw.get("index_checks", [])),
                "device_options": {
                    str(name): str(text) for name, text in raw.get("device_options", {}).items()
                },
                "blobs": read_blob_records(raw.get("blobs", [])),
                "verified": str(raw.get("verified", "no")),
            }
        )
        _check_kinds(manifest)
        _check_structure(manifest.structure, len(manifest.outputs))
    except (LookupError, TypeError, ValueError, AttributeError) as failure:
        raise _corrupt(folder, f"{FILE_NAME} has an invalid structure: {failure}") from failure
    if manifest.precision not in PRECISIONS:
        raise _corrupt(folder, f"{FILE_NAME} names the precision {manifest.precision!r}")
    for name, written in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise _corrupt(folder, f"{name} is missing")
        if fingerprint(path) != written:
            raise _corrupt(folder, f"{name} does not match its checksum")
    return manifest


def _port(raw: Mapping[str, Any]) -> PortSpec:
    return PortSpec(**{**raw, "shape": tuple(raw["shape"])})


def _check_kinds(manifest: Manifest) -> None:
    """Checks the types of fields that otherwise fail only at a call, or on the device."""
    texts = [manifest.name, manifest.precision]
    for port in (*manifest.inputs, *manifest.outputs):
        texts += [port.name, port.dtype]
        if not all(size is None or type(size) in (int, str) for size in port.shape):
            raise TypeError(f"the shape {list(port.shape)}")
    if not isinstance(manifest.files, dict):
        raise TypeError(f"the files {manifest.files!r}")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} for a text")


def _check_structure(structure: Mapping[str, Any], outputs: int) -> None:
    build(structure, [None] * outputs)


def build(structure: Mapping[str, Any], tensors: Sequence[Any]) -> Any:
    """Builds a result from its structure and the outputs."""
    ((kind, content),) = structure.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind == "dict":
        return {key: build(value, tensors) for key, value in content.items()}
    parts = [build(part, tensors) for part in content]
    return tuple(parts) if kind == "tuple" else parts


def _corrupt(folder: Path, reason: str) -> ExportError:
    return ExportError(
        f"npu_compiler.load: {folder} must be a complete export; {reason}. Export the model "
        "again, or copy the folder again.",
        code="export-corrupt",
    )

"""Loads OpenVINO models into the runtime through temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import npu_runtime
from npu_command.interrupt import removed_at_interrupt
from npu_compiler.config import read_settings
from npu_compiler.programs.device_options import compile_tolerant
from npu_runtime import observe
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    import openvino as ov

__all__ = ["device_name", "load_model", "load_tolerant", "needed_options", "write_model"]


@public_call
def load_model(
    model: ov.Model,
    *,
    name: str,
    options: Mapping[str, str],
    device_index: int | None = None,
    profiling: bool = False,
) -> npu_runtime.Program:
    """Compiles a model for the device.

    The model is written to a file, which the runtime maps. Its weights are then pages that the
    system may drop, and not a second copy on the heap. The file is unlinked before this returns.
    The tensors behind the model's constants are not needed afterwards.

    Args:
        model: any model; constants may share memory with torch.
        name: shown in traces and errors.
        options: from compile_options.
        device_index: index of the npu device; the current one by default.
        profiling: whether the device records times per layer.

    Raises:
        npu_runtime.ProgramError: the device refuses the model.
    """
    parent = read_settings().temporary_dir
    with (
        tempfile.TemporaryDirectory(prefix="npu-program-", dir=parent) as place,
        removed_at_interrupt(Path(place)),
    ):
        path = Path(place) / "model.xml"
        with observe.span("compile", "serialize", program=name):
            write_model(model, path)
        return npu_runtime.load_program(
            path, name=name, options=options, device_index=device_index, profiling=profiling
        )


@public_call
def load_tolerant(
    model: ov.Model,
    *,
    name: str,
    options: Mapping[str, str],
    device_index: int | None = None,
    profiling: bool = False,
) -> npu_runtime.Program:
    """Compiles a model around known defects of the device; see npu_compiler.known_defects.

    If the CPU plugin's kernel generator fails on it, it is compiled without the generator.
    Arguments are those of load_model; the model may be rewritten.

    Raises:
        npu_runtime.ProgramError: the device refuses the model both times.
    """

    def load(options: Mapping[str, str]) -> npu_runtime.Program:
        return load_model(
            model, name=name, options=options, device_index=device_index, profiling=profiling
        )

    needed = needed_options(model, device_index, options)
    device = device_name(device_index)
    program, _ = compile_tolerant(load, {**options, **needed}, name=name, device=device)
    return program


def needed_options(
    model: ov.Model, device_index: int | None, options: Mapping[str, str]
) -> dict[str, str]:
    """Rewrites a model around the device's known defects; returns the extra options it needs."""
    from npu_compiler.known_defects.table import avoid_defects  # late: imports openvino

    hint = options.get("INFERENCE_PRECISION_HINT", "f32")
    return avoid_defects(model, device=device_name(device_index), hint=hint)


def device_name(device_index: int | None) -> str:
    """Returns OpenVINO's name of an npu device, or SIM; of the current one for None."""
    given = () if device_index is None else (device_index,)
    return npu_runtime.device_info(*given).device


def write_model(model: ov.Model, path: Path, *, half: bool = False) -> None:
    """Writes a model as IR: the graph to `path`, the weights to a `.bin` file next to it.

    Args:
        model: any model.
        path: the .xml file.
        half: store float32 constants as float16 if their values allow it; the device converts them
            to its precision. This halves the bytes on disk and in the mapping.
    """
    import openvino as ov  # late: cached programs do not need OpenVINO's Python package

    if half:
        ov.save_model(model, str(path), compress_to_fp16=True)
    else:
        ov.serialize(model, str(path), str(path.with_suffix(".bin")))

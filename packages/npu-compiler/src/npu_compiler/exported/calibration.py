"""Calibration data for npu_compiler.export: example calls as arrays for the program's inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import openvino as ov
import torch

from npu_compiler.errors import OptionError
from npu_compiler.exported.capture import Captured
from npu_compiler.exported.manifest import Manifest
from npu_compiler.options import CompilerConfig
from npu_compiler.quantize import (
    ROUNDINGS,
    call_arguments,
    compress_weights,
    compress_weights_by_data,
    quantize_activations,
)

__all__ = ["check_calibration", "compressed"]


def check_calibration(config: CompilerConfig, *, is_given: bool) -> None:
    """Raises [option-conflict] if calibration data is missing, or has no effect."""
    if is_given and config.dtype != "int4" and config.activations is None:
        raise OptionError(
            "npu_compiler.export: `calibration` must be given with dtype 'int4', or 'int8' and "
            "activations "
            f"'int8', got dtype {config.dtype!r}, activations {config.activations!r}. Omit "
            "`calibration`, or choose one of these.",
            code="option-conflict",
        )
    if not is_given and config.activations is not None:
        raise OptionError(
            "npu_compiler.export: `calibration` must be given for activations "
            f"{config.activations!r}, got none. "
            "Pass example calls, such as calibration=[(x,), ...].",
            code="option-conflict",
        )
    if config.rounding is not None and not (is_given and config.dtype == "int4"):
        raise OptionError(
            f"npu_compiler.export: `rounding` {config.rounding!r} must be given with dtype 'int4' "
            "and calibration, got dtype "
            f"{config.dtype!r}{'' if is_given else ' and no calibration'}. "
            "Omit `rounding`, or pass both.",
            code="option-conflict",
        )


def compressed(
    model: ov.Model,
    config: CompilerConfig,
    *,
    calibration: Iterable[Any] | None,
    captured: Captured,
    manifest: Manifest,
) -> ov.Model:
    """Compresses a lowered model by options and calibration data; may change it in place.

    Raises:
        ExportError: [export-input] for a call that does not match the model's inputs.
        OptionError: as npu_compiler.quantize.calibrated.
    """
    if config.compression is None:
        return model
    if calibration is None:
        compress_weights(
            model,
            mode=config.compression,
            group_size=config.group_size,
            symmetric=config.symmetric,
        )
        return model
    samples = [_sample(call, captured, manifest) for call in calibration]
    if config.activations is not None:
        return quantize_activations(model, samples, symmetric=config.symmetric)
    return compress_weights_by_data(
        model,
        samples,
        group_size=config.group_size,
        symmetric=config.symmetric,
        rounding=config.rounding or ROUNDINGS[0],
    )


def _sample(call: Any, captured: Captured, manifest: Manifest) -> list[np.ndarray[Any, Any]]:
    args, kwargs = call_arguments(call)
    tensors = captured.tensors_of(args, kwargs)
    manifest.check_call([_described(tensor) for tensor in tensors])
    by_port = {
        port.port: tensor.detach().cpu().contiguous().numpy()
        for port, tensor in zip(manifest.inputs, tensors, strict=True)
        if port.port is not None
    }
    return [by_port[index] for index in sorted(by_port)]


def _described(value: Any) -> tuple[str, tuple[int, ...]]:
    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)
    return type(value).__name__, ()

"""Verification of an exported model against torch on the example's inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch

import npu_runtime
from npu_compiler.errors import ExportError, WrongResultWarning
from npu_compiler.exported.capture import Captured
from npu_compiler.exported.load import tensor_runner
from npu_compiler.exported.manifest import Manifest
from npu_compiler.openvino_core import openvino_core
from npu_compiler.options import CompilerConfig
from npu_compiler.verification.comparison import Difference, compare, on_host
from npu_compiler.verification.program_check import WORKAROUNDS
from npu_compiler.verification.reference import REFUSALS, Reference, refusal_text

__all__ = ["verified"]


def verified(
    folder: Path,
    manifest: Manifest,
    *,
    model: ov.Model,
    captured: Captured,
    example: Sequence[Any],
    outputs: Sequence[int | None],
    config: CompilerConfig,
) -> Manifest:
    """Runs the exported model and torch on the example, and records the verdict in the manifest.

    `example` has the tensors in the order of the manifest's inputs, `outputs` the index of the
    model's result for each of torch's. Returns the manifest with a verdict and the options that the
    model needs.

    Raises:
        ExportError: [wrong-result] for a model that differs from torch with all known workarounds.
    """
    if config.verify == "off":
        return manifest
    weights = _weights(model, captured.constants, config)
    if isinstance(weights, str):
        return dataclasses.replace(manifest, verified=f"not compared with torch: {weights}")
    module = captured.program.graph_module
    given = dict(zip(captured.inputs, example, strict=True)) | weights
    placeholders = module.graph.find_nodes(op="placeholder")
    reference = Reference(
        module, [given.get(node.name) for node in placeholders], precision=manifest.precision
    )
    try:
        results = reference.results()
    except REFUSALS as failure:
        text = f"not compared with torch: {refusal_text(failure)}"
        return dataclasses.replace(manifest, verified=text)
    bound = [
        tensor
        for port, tensor in zip(manifest.inputs, example, strict=True)
        if port.port is not None
    ]
    served = [index for index, output in enumerate(outputs) if output is not None]

    def judged(tried: Manifest) -> Difference | None:
        found = tensor_runner(folder / "model.xml", tried).run(bound, as_arrays=False)
        return compare(
            [found[output] for output in outputs if output is not None],
            [results[index] for index in served],
            precision=manifest.precision,
            noisy=lambda: ([sample[index] for index in served] for sample in reference.noisy()),
        )

    plain = dataclasses.replace(manifest, verified="yes")
    try:
        difference = judged(plain)
    except npu_runtime.NpuError as failure:
        return dataclasses.replace(manifest, verified=f"not compared with torch: {failure}")
    if difference is None:
        return plain
    for options in WORKAROUNDS:
        tried = dataclasses.replace(plain, device_options={**manifest.device_options, **options})
        with contextlib.suppress(npu_runtime.NpuError):
            if judged(tried) is None:
                told = ", ".join(f"{name}={value}" for name, value in options.items())
                warnings.warn(
                    f"{manifest.name}: the exported model differed from torch: {difference}; right "
                    f"with {told}.",
                    WrongResultWarning,
                    stacklevel=3,
                )
                return tried
    raise ExportError(
        f"{manifest.name}: an exported model must match torch's results, got {difference}. "
        "Nothing was written. Please report it, or pass verify='off' to export it anyway.",
        code="wrong-result",
    )


def _weights(
    model: ov.Model, constants: Mapping[str, torch.Tensor], config: CompilerConfig
) -> dict[str, torch.Tensor] | str:
    """Returns the weights of the model's computation, or why they are unknown."""
    weights = {name: on_host(tensor) for name, tensor in constants.items()}
    if config.compression is None:
        return weights
    if config.activations is not None:
        return "activations are quantized by the calibration data"
    found = {
        name.removesuffix("/decompressed"): node
        for node in model.get_ops()
        if (name := str(node.get_friendly_name())).endswith("/decompressed")
    }
    if not found and config.rounding == "awq":
        return "the weights are scaled by the calibration data"
    if unknown := sorted(set(found) - set(weights)):
        return f"{unknown[0]} was compressed in a form that no weight of the model has"
    for name, node in found.items():
        values = torch.from_numpy(_value(node))
        exact = weights[name]
        # As (output channels, inputs), whatever the weight's layout.
        is_turned = values.shape != exact.shape or (
            values.shape[0] == values.shape[1]
            and float((values.t() - exact).square().sum()) < float((values - exact).square().sum())
        )
        weights[name] = (values.t() if is_turned else values).to(exact.dtype)
    return weights


def _value(node: ov.Node) -> np.ndarray[Any, Any]:
    compiled = openvino_core().compile_model(
        ov.Model([node.output(0)], []), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return np.array(compiled([])[0])

"""Quantization with calibration data: GPTQ, or AWQ and scale estimation, for int4; full int8.

npu_compiler.quantize.gptq implements GPTQ. The others use NNCF, OpenVINO's quantization library,
which the extra `quantization` of this package installs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from npu_compiler.errors import OptionError
from npu_compiler.quantize.gptq import compress_by_moments
from npu_compiler.quantize.weights import GROUP_SIZES, ROUNDINGS
from npu_runtime.public_calls import public_call

__all__ = ["compress_weights_by_data", "quantize_activations"]

_LIBRARY = "nncf"
# Set while NNCF is imported, to disable its telemetry.
_NO_REPORTS = "NNCF_CI"


@public_call
def compress_weights_by_data(
    model: ov.Model,
    samples: Sequence[Sequence[Any]],
    *,
    group_size: int | None = 64,
    symmetric: bool = False,
    rounding: str = "gptq",
    kept: Path | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> ov.Model:
    """Compresses weights of matrix products to int4 with minimal change of the products.

    With "gptq" (npu_compiler.quantize.gptq), errors of a row's weights compensate each other. "awq"
    (Lin et al., 2023, arXiv:2306.00978) scales channels with large inputs before rounding, and
    folds the inverse into the previous operation. Scale estimation then fits each group's scale to
    the results. Embeddings, the last product, and rows that no group of 32 or more divides become
    int8.

    Args:
        model: float32. It may be changed; use the returned model.
        samples: one per call: arrays for the model's inputs, in order.
        group_size: 32, 64 or 128, or None for one scale per output channel.
        symmetric: omit zero points.
        rounding: "gptq", or "awq" for AWQ and scale estimation by NNCF.
        kept: for "gptq": a folder that stores each rounded weight. A later call with equal
            arguments reuses them. None to store nothing.
        on_progress: for "gptq": called with the number of rounded weights, and of all.

    Returns:
        The compressed model.

    Raises:
        OptionError: [option-value] for an unknown rounding, [quantize-group] for another group
            size, [quantize-data] without samples or for a model that is not float32,
            [quantize-library] if NNCF is needed and not installed.
    """
    if rounding not in ROUNDINGS:
        raise OptionError(
            f"compress_weights_by_data: `rounding` must be one of {', '.join(ROUNDINGS)}, got "
            f"{rounding!r}. Choose one.",
            code="option-value",
        )
    if group_size not in (*GROUP_SIZES, None):
        raise OptionError(
            "compress_weights_by_data: `group_size` must be one of 32, 64, 128, or None, got "
            f"{group_size!r}. Choose one.",
            code="quantize-group",
        )
    _prepare(model, samples)
    if rounding == "gptq":
        compress_by_moments(
            model, samples, group_size=group_size, symmetric=symmetric, kept=kept,
            on_progress=on_progress,
        )  # fmt: skip
        return model
    nncf = _library()
    modes = nncf.CompressWeightsMode
    return nncf.compress_weights(
        model,
        mode=modes.INT4_SYM if symmetric else modes.INT4_ASYM,
        group_size=-1 if group_size is None else group_size,
        dataset=nncf.Dataset(list(samples)),
        subset_size=len(samples),
        awq=True,
        scale_estimation=True,
        advanced_parameters=nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
            min_adjusted_group_size=min(GROUP_SIZES),
        ),
    )


@public_call
def quantize_activations(
    model: ov.Model, samples: Sequence[Sequence[Any]], *, symmetric: bool = False
) -> ov.Model:
    """Quantizes weights and activations of convolutions and matrix products to int8.

    Weights have a scale per output channel. Activations have a scale per tensor that covers the
    samples' values. A plugin then runs whole chains of such layers without conversion to float. In
    models with attention, inputs of the softmax stay float.

    Args:
        model: float32. It may be changed; use the returned model.
        samples: one per call: arrays for the model's inputs, in order. A few hundred are usual.
        symmetric: omit zero points of activations, which costs nothing after ReLU.

    Returns:
        The quantized model.

    Raises:
        OptionError: [quantize-data] without samples or for a model that is not float32,
            [quantize-library] if NNCF is not installed.
    """
    _prepare(model, samples)
    nncf = _library()
    kinds = {node.get_type_name() for node in model.get_ops()}
    has_attention = not kinds.isdisjoint({"ScaledDotProductAttention", "Softmax"})
    presets = nncf.QuantizationPreset
    return nncf.quantize(
        model,
        nncf.Dataset(list(samples)),
        preset=presets.PERFORMANCE if symmetric else presets.MIXED,
        model_type=nncf.ModelType.TRANSFORMER if has_attention else None,
        subset_size=len(samples),
    )


def _prepare(model: ov.Model, samples: Sequence[Sequence[Any]]) -> None:
    if not len(samples):
        raise OptionError(
            "`calibration` must have at least one example call, got none. Pass typical calls of "
            "the model.",
            code="quantize-data",
        )
    others = {
        kind
        for node in model.get_ops()
        if node.get_type_name() == "Constant"
        and (kind := node.get_output_element_type(0).get_type_name()) in ("f16", "bf16")
        and len(node.get_output_shape(0)) > 1
    }
    if others:
        raise OptionError(
            f"calibration: the model's weights must be float32, got {', '.join(sorted(others))}. "
            "Call model.float() first, and choose the precision of programs with precision=.",
            code="quantize-data",
        )
    _name_uniquely(model)


def _name_uniquely(model: ov.Model) -> None:
    """Gives nodes unique names, by which NNCF finds them; OpenVINO allows duplicates."""
    seen: set[str] = set()
    for node in model.get_ordered_ops():
        name = node.get_friendly_name()
        count = 0
        while name in seen:
            count += 1
            name = f"{node.get_friendly_name()}:{count}"
        seen.add(name)
        if count:
            node.set_friendly_name(name)


def _library() -> Any:
    before = os.environ.get(_NO_REPORTS)
    os.environ[_NO_REPORTS] = "1"
    try:
        return importlib.import_module(_LIBRARY)
    except ImportError as missing:
        raise OptionError(
            "NNCF must be installed for AWQ and quantized activations, got "
            f"{missing}. Run pip install 'nncf>=3.4,<3.5', or choose rounding 'gptq' "
            "for int4 weights.",
            code="quantize-library",
        ) from missing
    finally:
        if before is None:
            del os.environ[_NO_REPORTS]
        else:
            os.environ[_NO_REPORTS] = before

"""Scheme: a checkpoint's quantization, detected by its config and tensor names."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized import (
    awq,
    bitsandbytes,
    compressed_tensors,
    float8,
    gptq,
    hqq,
    quanto,
    torchao,
)
from npu_llm.checkpoint.quantized.encoded import EncodedWeight, unreadable
from npu_llm.checkpoint.quantized.signs import BESIDE, INTEGERS, described_in

__all__ = ["Scheme", "TensorFiles", "find_scheme"]

_Finder = Callable[
    [Mapping[str, Any], Mapping[str, TensorSpec], "TensorFiles"], Iterable[EncodedWeight]
]
_FINDERS: dict[str, _Finder] = {
    "gptq": lambda config, headers, files: gptq.find(config, headers),
    "awq": lambda config, headers, files: awq.find(config, headers),
    "compressed-tensors": lambda config, headers, files: compressed_tensors.find(
        config, headers, files.read
    ),
    "bitsandbytes": lambda config, headers, files: bitsandbytes.find(config, headers, files.read),
    "fp8": lambda config, headers, files: float8.find(config, headers),
    "hqq": lambda config, headers, files: hqq.find(headers, files.read),
    "torchao": lambda config, headers, files: torchao.find(files.metadata(), headers),
    "quanto": lambda config, headers, files: quanto.find(headers),
    "fbgemm_fp8": lambda config, headers, files: float8.find(config, headers),
    "modelopt": lambda config, headers, files: float8.find(config, headers),
}
# Methods that transformers dequantizes without another package.
_BY_TRANSFORMERS = ("mxfp4",)
_EXPERT = re.compile(r"\.experts\.\d+\.")
# Written by transformers for a model that it read from a GGUF file: floats.
_DEQUANTIZED = "gguf"


@dataclass(frozen=True)
class Scheme:
    """A checkpoint's quantization.

    Attributes:
        method: name in the config, or "fp8" without one.
        weights: the quantized weights by name.
        plain: the other tensors by name.
        files: reads the tensors.
    """

    method: str
    weights: Mapping[str, EncodedWeight]
    plain: Mapping[str, TensorSpec]
    files: TensorFiles = field(repr=False)

    @property
    def tensors(self) -> list[TensorSpec]:
        """The tensors as in an unquantized checkpoint."""
        decoded = [
            TensorSpec(one.name, "F32", one.shape or (one.count, 1))
            for one in self.weights.values()
        ]
        return [*self.plain.values(), *decoded]

    @property
    def integer_bits(self) -> int:
        """Bits of the integers that kernels can keep; 0 if all become floats."""
        return max((one.bits for one in self.weights.values() if one.why_floats is None), default=0)

    @property
    def is_kept(self) -> bool:
        """Whether kernels can keep some of the weights unchanged."""
        return any(one.why_floats is None for one in self.weights.values())

    def __str__(self) -> str:
        counts = Counter((one.form, one.why_floats) for one in self.weights.values())
        forms = [
            f"{count} weights in {form}" + (f", dequantized as {why}" if why else "")
            for (form, why), count in counts.most_common()
        ]
        return f"{self.method}: {'; '.join(forms)}"


class TensorFiles:
    """The safetensors files of a checkpoint, mapped when one of their tensors is read."""

    def __init__(self, folder: Path, headers: Mapping[str, TensorSpec]) -> None:
        self._folder = folder
        self._headers = headers
        self._open: dict[str, Any] = {}

    def read(self, name: str) -> torch.Tensor:
        """Returns a tensor in mapped memory, which must not be modified."""
        file = self._headers[name].file
        if file not in self._open:
            self._open[file] = safe_open(self._folder / file, "pt")
        tensor: torch.Tensor = self._open[file].get_tensor(name)
        return tensor

    def metadata(self) -> dict[str, str]:
        """Returns the metadata of all files."""
        found: dict[str, str] = {}
        for file in {one.file for one in self._headers.values()}:
            with safe_open(self._folder / file, "pt") as opened:
                found.update(opened.metadata() or {})
        return found


def find_scheme(
    folder: Path, config: Mapping[str, Any], headers: Mapping[str, TensorSpec]
) -> Scheme | None:
    """Detects a checkpoint's quantization; returns None if its weights are floats.

    Args:
        folder: the checkpoint folder.
        config: the content of its config.json.
        headers: headers of its safetensors files.

    Raises:
        ModelError: [quantization-form] for an unsupported format, [quantization-parts] for
            inconsistent tensors, [weights-scale] for float8 without scales.
    """
    about = _quantization_of(folder, config)
    method = None if about is None else str(about.get("quant_method", "")).lower()
    if method in _BY_TRANSFORMERS:
        return None
    if method is None or method == _DEQUANTIZED:
        method = _by_tensors(headers)
        about = {}
        if method is None:
            _refuse_integers(headers)
            return None
    if method not in _FINDERS:
        raise unreadable(f"quant_method {method!r}")
    if not headers:
        raise unreadable(f"{method} in files that are not safetensors")
    assert about is not None
    files = TensorFiles(folder, headers)
    found = _FINDERS[method](about, headers, files)
    weights = {one.name: _as_joined(one) for one in found}
    used = {name for one in weights.values() for name in one.parts.values()}
    plain = {
        name: tensor
        for name, tensor in headers.items()
        if name not in used and name.rpartition(".")[2] not in compressed_tensors.ACTIVATIONS
    }
    _refuse_integers(plain)
    return Scheme(method, weights, plain, files) if weights else None


def _as_joined(weight: EncodedWeight) -> EncodedWeight:
    """Returns a weight as it runs: models merge their experts' matrices into one parameter."""
    if weight.why_floats is not None or not _EXPERT.search(weight.name):
        return weight
    return replace(weight, why_floats="the model merges its experts, in 16 bits")


def _quantization_of(folder: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    if (described := described_in(config)) is not None:
        return described
    for name, method in BESIDE.items():
        try:
            found = json.loads((folder / name).read_text())
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            return {"quant_method": method, **found}
    return None


def _by_tensors(headers: Mapping[str, TensorSpec]) -> str | None:
    """Returns the quantization method if the config contains none; None for floats."""
    for name, tensor in headers.items():
        if tensor.dtype.startswith("F8_"):
            return "fp8"
        if ".quant_state.bitsandbytes__" in name or name.endswith(".SCB"):
            return "bitsandbytes"
        if name.endswith((".qweight", ".weight_packed")):
            raise unreadable(f"{name}, without a quantization_config that describes it")
    return None


def _refuse_integers(plain: Mapping[str, TensorSpec]) -> None:
    for name, tensor in plain.items():
        is_weight = name.endswith(".weight") and len(tensor.shape) > 1
        if is_weight and tensor.dtype in INTEGERS:
            raise unreadable(f"{name} of integers ({tensor.dtype}) without a description")

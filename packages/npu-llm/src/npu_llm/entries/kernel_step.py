"""Lowers a model's captured step to a kernel program, and packs its weights one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from npu_compiler.kernel_programs import Lowered, lower_to_kernels
from npu_compiler.quantize import fitting_group, quantize_weight
from npu_llm.capture.compression import Compression
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.entries.entry import KERNEL_PROGRAM, KERNEL_WEIGHTS, REFERENCE
from npu_llm.precision import Precision, kernels_cache
from npu_llm.progress import Progress
from npu_llm.verification.eager_weights import Rounding
from npu_llm.verification.torch_reference import compute_reference
from npu_ops.kernel_programs.program import KernelProgram, LayerShape, Recipe
from npu_ops.kernel_programs.weight_file import write_weights
from npu_ops.kernel_programs.weights import (
    PackedKind,
    PackedLinear,
    interleave,
    pack,
    pack_integers,
    unpack,
)

__all__ = ["save_kernel_step"]

# Positions of a model that sets no limit.
_POSITIONS = 1 << 16
# Smaller weights stay as they are, as in npu_compiler.quantize.
_FEWEST_ELEMENTS = 4096
_LARGEST_HALF = torch.finfo(torch.float16).max
_INTEGERS = ("int8", "int4")


def save_kernel_step(
    model: Any,
    captured: CapturedStep,
    folder: Path,
    *,
    precision: Precision,
    progress: Progress,
    weights: StreamedWeights,
    compression: Compression,
    context: int | None,
) -> dict[str, Any]:
    """Saves a model's step as a kernel program.

    Args:
        model: a decoder-only transformers model in float32, on cpu.
        captured: its step, which writes nothing in place; not changed.
        folder: where to write the program, its weights, and what torch computes for a few tokens.
        precision: how to store the weights.
        progress: where to report.
        weights: the values of the model's parameters.
        compression: how weights of few bits are made.
        context: how many tokens the model was made for; None if nothing sets a limit.

    Returns:
        What is known about the step: how many layers it has.

    Raises:
        npu_compiler.errors.LoweringError: [not-row-wise] if it is no kernel program.
    """
    with progress.stage("lower"):
        lowered = _lower(captured, context)
    (folder / KERNEL_PROGRAM).write_text(json.dumps(lowered.program.as_dict()))
    packer = _Packer(lowered, weights, precision, compression)
    with progress.stage("compress" if precision.weights in _INTEGERS else "save"):
        write_weights(folder / KERNEL_WEIGHTS, packer.packed())
    with progress.stage("reference"):
        cached = getattr(torch, kernels_cache(precision))
        compute_reference(
            model,
            weights,
            compressed=packer,
            rounding=Rounding(cached, precision.activation_group),
            context=context,
        ).write(folder / REFERENCE)
    return {"layers": len(captured.layers), "limits": list(captured.limits)}


def _lower(captured: CapturedStep, context: int | None) -> Lowered:
    shapes = [
        LayerShape(layer.key_heads, layer.key_dim, layer.value_dim) for layer in captured.layers
    ]
    return lower_to_kernels(
        captured.graph_module,
        inputs=captured.inputs,
        layers=shapes,
        vocabulary=captured.vocabulary,
        positions=context or _POSITIONS,
    )


@dataclass(frozen=True)
class _Form:
    """How a parameter is stored: the kind, and for integers the inputs that share a scale."""

    kind: PackedKind
    group: int | None = None

    @property
    def is_integer(self) -> bool:
        """Whether its elements are integers."""
        return self.kind in _INTEGERS


class _Packer:
    """Makes a program's weights of a model's parameters, and tells what they stand for then."""

    def __init__(
        self,
        lowered: Lowered,
        weights: StreamedWeights,
        precision: Precision,
        compression: Compression,
    ) -> None:
        self._lowered = lowered
        self._weights = weights
        self._precision = precision
        self._compression = compression
        self._products = _products(lowered.program)
        self._latest: tuple[int, torch.Tensor] | None = None
        # By a parameter's address: how it is stored, and whether it is (inputs, outputs).
        self._stored: dict[int, tuple[_Form, bool]] = {}
        for name, recipe in lowered.program.weights.items():
            for source in recipe.sources if recipe.kind == "linear" else ():
                address = lowered.sources[source].data_ptr()
                self._stored[address] = self._form(name, recipe), recipe.transposed

    def packed(self) -> Iterator[tuple[str, PackedLinear | torch.Tensor]]:
        """Yields the program's weights, each when it is asked for."""
        for name, recipe in self._lowered.program.weights.items():
            if recipe.kind == "table":
                yield name, self._lowered.tables[name]
            elif recipe.kind == "vector":
                yield name, (self._joined(recipe).float() + recipe.added).contiguous()
            else:
                yield name, self._pack(self._joined(recipe), self._form(name, recipe))

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the values that a parameter is stored as; None if they are its own."""
        form, is_transposed = self._stored.get(tensor.data_ptr(), (_Form("float32"), False))
        if not form.is_integer:
            return None
        value = self._weights.read(tensor)
        if value.dim() == 3:  # of experts, which are asked for one by one
            if self._latest is None or self._latest[0] != tensor.data_ptr():
                stored = torch.stack([unpack(self._pack(one, form)) for one in value])
                self._latest = tensor.data_ptr(), stored
            return self._latest[1]
        if is_transposed:
            return unpack(self._pack(value.t(), form)).t()
        return unpack(self._pack(value, form))

    def rows(self, tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
        """Returns some rows of what `read` returns; None if they are the parameter's own."""
        form, is_transposed = self._stored.get(tensor.data_ptr(), (_Form("float32"), False))
        if not form.is_integer or is_transposed:
            return None
        chosen = self._weights.read(tensor)[indices.reshape(-1)]
        return unpack(self._pack(chosen, form)).reshape(*indices.shape, -1)

    def _joined(self, recipe: Recipe) -> torch.Tensor:
        parts = []
        for source in recipe.sources:
            value = self._weights.read(self._lowered.sources[source].detach())
            value = value if recipe.index is None else value[recipe.index]
            # A part that is joined to others must outlast the reading of the next one.
            value = value.t() if recipe.transposed else value
            parts.append(value.clone() if len(recipe.sources) > 1 else value)
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
        if recipe.order is not None:
            joined = joined[self._lowered.tables[recipe.order]]
        return interleave(*joined.chunk(2)) if recipe.interleaved else joined

    def _form(self, name: str, recipe: Recipe) -> _Form:
        """Returns how a weight is stored; parameters that are joined are stored alike."""
        sources = [self._lowered.sources[source] for source in recipe.sources]
        if sum(source.numel() for source in sources) < _FEWEST_ELEMENTS:
            return _Form("float32")
        wanted = self._precision.weights
        if wanted not in _INTEGERS:
            return _Form(cast(PackedKind, wanted))
        if name not in self._products:
            return _Form("float16")  # rows of it are read, never all
        columns = sources[0].shape[-2 if recipe.transposed else -1]
        if wanted == "int4" and not recipe.keeps_precision:
            group = fitting_group(columns, self._compression.group_size)
            if group is not None:
                return _Form("int4", group)
        return _Form("int8")

    def _pack(self, value: torch.Tensor, form: _Form) -> PackedLinear:
        if not form.is_integer:
            is_half = form.kind == "float16"
            fits = not is_half or float(value.detach().abs().max()) <= _LARGEST_HALF
            return pack(value, form.kind if fits else "float32")
        bits = 8 if form.kind == "int8" else 4
        quantized = quantize_weight(
            value, bits=bits, group_size=form.group, symmetric=self._compression.symmetric
        )
        levels, zeros = quantized.values, quantized.zero_point
        if zeros is None:
            levels = (levels.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8)
        return pack_integers(
            levels,
            quantized.scale[..., 0],
            None if zeros is None else zeros[..., 0],
            bits=bits,
        )


def _products(program: KernelProgram) -> set[str]:
    """Returns the weights that rows are multiplied by; others are only looked up."""
    found: set[str] = set()
    for one in program.instructions:
        for name in ("weight", "gate_up", "down"):
            value = getattr(one, name, None)
            found |= {value} if isinstance(value, str) else set(value or ())
    return found

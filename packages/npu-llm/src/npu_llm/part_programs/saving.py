"""Saves the parts of a model as programs, and beside them what its processor reads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.lowering import lower
from npu_compiler.programs.stateful import StateVariable, make_stateful
from npu_llm.capture.compression import Compression, compress
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.models.lower_step import fits_half, share_masks
from npu_llm.part_programs.tracing import TracedPart
from npu_llm.precision import Precision
from npu_llm.progress import Progress
from npu_llm.verification.reference import CompressedWeights, Integers

__all__ = ["AnyOf", "lower_part", "save_beside", "save_part"]

# Files of a checkpoint that a processor or a tokenizer reads.
_BESIDE = (
    "*token*", "*vocab*", "merges.txt", "*processor*", "preprocessor_config.json", "*.spm",
    "*.model", "*.jinja", "normalizer.json",
)  # fmt: skip


@dataclass(frozen=True)
class AnyOf:
    """The integers of several programs of one model."""

    members: tuple[Integers, ...]

    def read(self, tensor: Any) -> Any:
        """See Integers."""
        return next(
            (found for one in self.members if (found := one.read(tensor)) is not None), None
        )

    def rows(self, tensor: Any, indices: Any) -> Any:
        """See Integers."""
        found = (one.rows(tensor, indices) for one in self.members)
        return next((rows for rows in found if rows is not None), None)


def lower_part(part: TracedPart) -> Any:
    """Returns a part as an openvino.Model, with its names; caches are inputs and results."""
    share_masks(part.graph_module)
    lowered = lower(part.graph_module, name=part.name).model
    for parameter, name in zip(lowered.get_parameters(), part.inputs, strict=True):
        parameter.set_friendly_name(name)
        parameter.get_output_tensor(0).set_names({name})
    for result, name in zip(lowered.get_results(), part.outputs, strict=True):
        result.get_output_tensor(0).set_names({f"{name}.next" if name in part.inputs else name})
    return lowered


def save_part(
    part: TracedPart,
    lowered: Any,
    path: Path,
    *,
    states: Sequence[str],
    model: Any,
    precision: Precision,
    weights: StreamedWeights,
    progress: Progress,
) -> Integers | None:
    """Writes a part as IR.

    Args:
        part: the part.
        lowered: the same as an openvino.Model.
        path: the .xml file.
        states: inputs, and results of the same name, that become the program's state.
        model: the model that it is a part of.
        precision: how to store its weights.
        weights: the values of the model's parameters.
        progress: where to report.

    Returns:
        The integers that it holds; None if it was not compressed.
    """
    is_compressed = precision.weights in ("int8", "int4")
    integers = CompressedWeights(lowered) if is_compressed else None
    if states:
        variables = [
            StateVariable(name, part.inputs.index(name), part.outputs.index(name))
            for name in states
        ]
        lowered = make_stateful(lowered, variables)
    if integers is not None:
        with progress.stage("compress"):
            compress(lowered, precision, Compression(), weights)
            integers.find(lowered)
    with progress.stage("save"):
        half = not part.is_exact and fits_half(model, weights, precision)
        weights.write(lowered, path, half=half)
    return integers


def save_beside(model: Any, source: ModelSource, folder: Path) -> None:
    """Writes a model's configs, and the files that its processor or tokenizer reads."""
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    for pattern in _BESIDE:
        for file in source.folder.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)

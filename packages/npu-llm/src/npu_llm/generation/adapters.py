"""Loaded adapters: the inputs of a step for the active ones, and the program that takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from npu_llm.adapters.lora import SCALES, AdapterFile, LowRank, common_rank, of_rank, read_adapter
from npu_llm.errors import ModelError, OptionError
from npu_llm.models.build import prepare
from npu_llm.models.entry import Entry
from npu_llm.models.load import DynamicPipeline, LoadedModel, Pipeline, StaticPipeline
from npu_llm.models.load_options import LoadOptions
from npu_runtime import device_info

__all__ = ["AdaptedModel", "Adapters", "Choice", "check_usable", "parse_choice"]

# A choice of adapters: one, several, or each with a scale.
Choice = str | Sequence[str] | Mapping[str, float] | None


class Adapters:
    """Loaded adapters by name."""

    def __init__(self) -> None:
        self._files: dict[str, AdapterFile] = {}
        self._joined: dict[tuple[str, ...], dict[str, torch.Tensor]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in loading order."""
        return tuple(self._files)

    def modules_with(self, file: AdapterFile) -> tuple[str, ...]:
        """Returns the modules that the loaded adapters and a further one change."""
        found = {module for one in (*self._files.values(), file) for module in one.layers}
        return tuple(sorted(found))

    def add(self, name: str, file: AdapterFile, sizes: Mapping[str, Sequence[int]]) -> None:
        """Adds an adapter.

        Args:
            name: its name.
            file: the adapter.
            sizes: inputs and outputs of the model's modules.

        Raises:
            ModelError: [adapter-base] if it was made for a model with other sizes.
        """
        for module, layer in file.layers.items():
            given = (layer.first.shape[1], layer.second.shape[0])
            if given != tuple(sizes[module]):
                raise ModelError(
                    f"`{file.path}` must change layers with the model's sizes, got {module} of "
                    f"{given[0]} inputs and {given[1]} outputs instead of {sizes[module][0]} and "
                    f"{sizes[module][1]}. Load the model that it was trained on.",
                    code="adapter-base",
                )
        self._files[name] = file
        self._joined.clear()

    def inputs(
        self, rows: Sequence[Mapping[str, float]], sizes: Mapping[str, Sequence[int]]
    ) -> dict[str, torch.Tensor]:
        """Returns the adapter inputs of a step.

        Args:
            rows: the scales of the active adapters, per row of a batch or once for all rows.
            sizes: inputs and outputs of the modules that the step's program can change.
        """
        used = tuple(name for name in self._files if any(name in row for row in rows))
        if used not in self._joined:
            self._joined[used] = self._join(used, sizes)
        ranks = [_rank(self._files[name]) for name in used]
        scales = [
            [
                row.get(name, 0.0)
                for name, rank in zip(used, ranks, strict=True)
                for _ in range(rank)
            ]
            for row in rows
        ]
        return {SCALES: torch.tensor(scales, dtype=torch.float32), **self._joined[used]}

    def check(self, names: Sequence[str]) -> None:
        """Raises OptionError [adapter-name] for an adapter that was not loaded."""
        unknown = [name for name in names if name not in self._files]
        if unknown:
            known = ", ".join(self._files) or "none"
            raise OptionError(
                f"`set_adapter` must name loaded adapters, which are: {known}, got "
                f"{unknown[0]!r}. Load it with load_adapter.",
                code="adapter-name",
            )

    def _join(
        self, used: Sequence[str], sizes: Mapping[str, Sequence[int]]
    ) -> dict[str, torch.Tensor]:
        """Returns A and B of each module, with all active adapters concatenated."""
        values = {}
        for module, (inputs, outputs) in sizes.items():
            first, second = [], []
            for name in used:
                file = self._files[name]
                one, other = _padded(file.layers.get(module), _rank(file), inputs, outputs)
                first.append(one)
                second.append(other)
            values[f"adapter.{module}.a"] = torch.cat(first).contiguous()
            values[f"adapter.{module}.b"] = torch.cat(second, 1).contiguous()
        return values


def parse_choice(choice: Choice, scale: float) -> dict[str, float]:
    """Returns the scales of the chosen adapters; empty for no adapter."""
    if choice is None:
        return {}
    if isinstance(choice, str):
        return {choice: scale}
    if isinstance(choice, Mapping):
        return {name: float(factor) * scale for name, factor in choice.items()}
    return dict.fromkeys(choice, scale)


def check_usable(file: AdapterFile) -> None:
    """Raises ModelError [adapter-kind] for an adapter that can only be merged."""
    dora = [name for name, layer in file.layers.items() if layer.magnitude is not None]
    embedding = [name for name, layer in file.layers.items() if layer.is_embedding]
    reasons = [
        (dora, "DoRA, whose change depends on the weights"),
        (embedding, "a change of an embedding"),
        (sorted(file.replaced), "whole weights"),
    ]
    for names, what in reasons:
        if names:
            raise ModelError(
                f"{file.path}: an adapter in use must change linear layers by low-rank matrices "
                f"alone, got {what}, such as {names[0]}. Merge it into the model with `npu-llm "
                "merge`.",
                code="adapter-kind",
            )


def _rank(file: AdapterFile) -> int:
    return max(layer.first.shape[0] for layer in file.layers.values())


def _padded(
    layer: LowRank | None, rank: int, inputs: int, outputs: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns A (rank, inputs) and the scaled B (outputs, rank); zeros for unchanged modules."""
    first, second = torch.zeros(rank, inputs), torch.zeros(outputs, rank)
    if layer is not None:
        own = layer.first.shape[0]
        first[:own] = layer.first
        second[:, :own] = layer.second * layer.scale
    return first, second


class AdaptedModel:
    """Loads adapters for a model, and selects the program for a choice of them."""

    def __init__(self, entry: Entry, pipeline: Pipeline) -> None:
        self._plain = entry, pipeline
        self._adapters = Adapters()
        self._ready: LoadedModel[Pipeline] | None = None

    @property
    def plain_entry(self) -> Entry:
        """The entry of the program without adapters."""
        return self._plain[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the loaded adapters."""
        return self._adapters.names

    def load(self, path: str | Path, name: str | None) -> str:
        """Loads an adapter; see NPUModelForCausalLM.load_adapter."""
        file = read_adapter(path)
        name = file.path.resolve().name if name is None else name
        if name in self.names:
            raise OptionError(
                f"`load_adapter` must give each adapter a separate name, got {name!r} again. Pass "
                "another name.",
                code="adapter-name",
            )
        check_usable(file)
        ready = self._ready
        modules = self._adapters.modules_with(file)
        if ready is None or set(modules) - set(ready.entry.adapted):
            ready = self._prepared(modules, file)
        self._adapters.add(name, file, ready.entry.adapted)
        self._ready = ready
        return name

    def choose(self, rows: Sequence[Mapping[str, float]]) -> tuple[Entry, Pipeline]:
        """Returns the pipeline for the given scales, per row or once for all rows."""
        self._adapters.check([name for row in rows for name in row])
        if self._ready is None or not any(rows):
            return self._plain
        pipeline = self._ready.programs
        entry = self._ready.entry
        inputs = self._adapters.inputs(rows, entry.adapted)
        if isinstance(pipeline, StaticPipeline):
            rank = common_rank(inputs)
            given = of_rank(inputs, rank)
            return entry, replace(pipeline, programs=pipeline.for_rank(rank), given=given)
        assert isinstance(pipeline, DynamicPipeline), "it was prepared as one of the two"
        return entry, replace(pipeline, constants=inputs)

    def _prepared(self, modules: tuple[str, ...], file: AdapterFile) -> LoadedModel[Pipeline]:
        entry = self._plain[0]
        source = Path(str(entry.about["source"]))
        is_exported = "made_with" in entry.about  # its weights may be rounded differently
        if is_exported or not source.exists():
            raise OptionError(
                f"{file.path}: an adapter needs the model's original files, to compile a program "
                f"that takes it, got {entry.folder}. Load the checkpoint, or merge the adapter "
                "into it with `npu-llm merge`.",
                code="adapter-source",
            )
        is_static = entry.pipeline == "static" or device_info().device.startswith("NPU")
        options = LoadOptions(
            dtype=entry.precision.name,
            pipeline="static" if is_static else "dynamic",
            max_context=entry.max_context,
            kv_cache=entry.kv_cache,
            cache_dir=entry.folder.parent,
            adapted_modules=modules,
            trust_remote_code=bool(entry.about.get("trust_remote_code")),
            ignore_unexpected=bool(entry.about.get("ignore_unexpected")),
        )
        return prepare(source, options)

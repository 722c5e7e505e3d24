"""The adapters that a model has loaded, and the inputs of a step for those that are in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from npu_llm.adapters.lora import SCALES, AdapterFile, LowRank
from npu_llm.errors import ModelError, OptionError

__all__ = ["Adapters", "Choice", "check_usable", "parse_choice"]

# Which adapters to use: one, several, or each with a scale.
Choice = str | Sequence[str] | Mapping[str, float] | None


class Adapters:
    """Loaded adapters by name."""

    def __init__(self) -> None:
        self._files: dict[str, AdapterFile] = {}
        self._joined: dict[tuple[str, ...], dict[str, torch.Tensor]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they were loaded."""
        return tuple(self._files)

    def modules_with(self, file: AdapterFile) -> tuple[str, ...]:
        """Returns the modules that the loaded adapters and another one change."""
        found = {module for one in (*self._files.values(), file) for module in one.layers}
        return tuple(sorted(found))

    def add(self, name: str, file: AdapterFile, sizes: Mapping[str, Sequence[int]]) -> None:
        """Adds an adapter.

        Args:
            name: its name.
            file: the adapter.
            sizes: inputs and outputs of the model's modules.

        Raises:
            ModelError: [adapter-base] if it was made for a model of other sizes.
        """
        for module, layer in file.layers.items():
            given = (layer.first.shape[1], layer.second.shape[0])
            if given != tuple(sizes[module]):
                raise ModelError(
                    f"{file.path}: must change layers of the model's sizes; got {module} of "
                    f"{given[0]} inputs and {given[1]} outputs instead of {sizes[module][0]} and "
                    f"{sizes[module][1]}. Load the model that it was trained on.",
                    code="adapter-base",
                )
        self._files[name] = file
        self._joined.clear()

    def inputs(
        self, rows: Sequence[Mapping[str, float]], sizes: Mapping[str, Sequence[int]]
    ) -> dict[str, torch.Tensor]:
        """Returns the inputs of a step.

        Args:
            rows: the scales of the adapters in use, for each row of a batch, or once for all rows.
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
        """Raises OptionError [adapter-name] for a name that was not loaded."""
        unknown = [name for name in names if name not in self._files]
        if unknown:
            known = ", ".join(self._files) or "none"
            raise OptionError(
                f"set_adapter: must name adapters that were loaded, which are: {known}; got "
                f"{unknown[0]!r}. Load it with load_adapter.",
                code="adapter-name",
            )

    def _join(
        self, used: Sequence[str], sizes: Mapping[str, Sequence[int]]
    ) -> dict[str, torch.Tensor]:
        """Returns A and B of each module, all used adapters one behind the other."""
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
    """Returns the scales of the chosen adapters; empty for none."""
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
                f"alone; got {what}, such as {names[0]}. Merge it into the model with `npu-llm "
                "merge`.",
                code="adapter-kind",
            )


def _rank(file: AdapterFile) -> int:
    return max(layer.first.shape[0] for layer in file.layers.values())


def _padded(
    layer: LowRank | None, rank: int, inputs: int, outputs: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns A (rank, inputs) and the scaled B (outputs, rank); zeros where nothing changes."""
    first, second = torch.zeros(rank, inputs), torch.zeros(outputs, rank)
    if layer is not None:
        own = layer.first.shape[0]
        first[:own] = layer.first
        second[:, :own] = layer.second * layer.scale
    return first, second

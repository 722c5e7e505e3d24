"""Texts padded to few lengths and batches, for devices that compile a program for each shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npu_compiler.exported.manifest import Manifest, PortSpec, build
from npu_llm.tasks.examples import TOKEN_INPUTS

__all__ = ["Padding"]

# Tokens of the shortest program; longer ones have twice as many each.
_SHORTEST = 16


class Padding:
    """Fills up the inputs of a model, and cuts its results."""

    def __init__(self, manifest: Manifest, config: Any, *, limit: int | None) -> None:
        """Reads which sizes vary.

        Args:
            manifest: of the model's program.
            config: of transformers.
            limit: how many tokens a text may have; None for no limit.
        """
        self._inputs: Sequence[PortSpec] = manifest.inputs
        self._limit = limit
        filling = getattr(config.get_text_config(), "pad_token_id", None)
        self._filling = filling if isinstance(filling, int) and filling >= 0 else 0
        # Results in the order in which they are given, which is not that of the outputs.
        places = build(manifest.structure, list(manifest.outputs))
        self._results = pytree.tree_leaves(places)
        names = [port.name for port in manifest.inputs]
        self._rows = {port.shape[0] for port in manifest.inputs if isinstance(port.shape[0], str)}
        self._tokens = {
            port.shape[1]
            for port in manifest.inputs
            if port.name in TOKEN_INPUTS and "input_ids" in names and isinstance(port.shape[1], str)
        }

    def pad(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns inputs with more tokens, which masks hide, and copies of the last row."""
        return [self._longer(port, value) for port, value in zip(self._inputs, values, strict=True)]

    def cut(self, results: Any, values: Sequence[torch.Tensor]) -> Any:
        """Returns what the program gave for padded inputs as it belongs to these."""
        sizes = {
            name: value.shape[dim]
            for port, value in zip(self._inputs, values, strict=True)
            for dim, name in enumerate(port.shape)
            if name in self._rows | self._tokens
        }
        leaves, spec = pytree.tree_flatten(results)
        for index, port in enumerate(self._results):
            if isinstance(port, PortSpec):
                for dim, name in enumerate(port.shape):
                    if name in sizes:
                        leaves[index] = leaves[index].narrow(dim, 0, sizes[name])
        return pytree.tree_unflatten(leaves, spec)

    def _longer(self, port: PortSpec, value: torch.Tensor) -> torch.Tensor:
        for dim, name in enumerate(port.shape):
            size = value.shape[dim]
            if name in self._tokens:
                fill = self._filling if port.name == "input_ids" else 0
                shape = [*value.shape]
                shape[dim] = self._length(size) - size
                value = torch.cat([value, value.new_full(shape, fill)], dim)
            elif name in self._rows:
                rows = torch.arange(_rounded(size, 1)).clamp_max(size - 1)
                value = value.index_select(dim, rows)
        return value

    def _length(self, tokens: int) -> int:
        most = self._limit
        length = _rounded(tokens, _SHORTEST)
        return length if most is None or tokens > most else min(length, most)


def _rounded(number: int, least: int) -> int:
    """Returns the smallest double of `least` that holds a number."""
    while least < number:
        least *= 2
    return least

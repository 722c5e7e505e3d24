"""Runs one program on tensors, as a module among eager calls.

Making them is npu_compiler.assembly's and npu_compiler.compilation's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import npu_runtime

__all__ = ["ProgramCall"]


class ProgramCall(torch.nn.Module):
    """A program as a module, so that it stands in a graph beside eager calls."""

    input_names: tuple[str, ...]

    def __init__(
        self,
        program: npu_runtime.Program,
        *,
        input_orders: Sequence[tuple[int, ...] | None],
        output_orders: Sequence[tuple[int, ...] | None],
        home: str,
    ) -> None:
        """Wraps a program.

        Args:
            program: loaded.
            input_orders: per input the axes in the order their bytes lie, None for their own.
            output_orders: per output the permutation that makes the graph's result of the port's.
            home: device type of the results.
        """
        super().__init__()
        self.program = program
        self._home = torch.device(home)
        self._input_orders = tuple(input_orders)
        self._output_orders = tuple(output_orders)
        self._is_plain_in = not any(self._input_orders)
        self._is_plain_out = not any(self._output_orders)

    def forward(self, *inputs: Any) -> list[torch.Tensor]:
        """Runs the program; results are new tensors."""
        bound = [
            value
            if isinstance(value, torch.Tensor) and value.is_contiguous()
            else _contiguous(value)
            for value in (inputs if self._is_plain_in else self._ordered(inputs))
        ]
        results = self.program.run(bound, output_device=self._home)
        if self._is_plain_out:
            return results
        return [
            result if order is None else result.permute(order)
            for result, order in zip(results, self._output_orders, strict=True)
        ]

    def _ordered(self, inputs: Sequence[Any]) -> list[Any]:
        return [
            value if order is None else value.permute(order)
            for value, order in zip(inputs, self._input_orders, strict=True)
        ]


def _contiguous(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        # A symbolic number that no input has as a size.
        return torch.tensor(value)
    return value.detach().contiguous()

"""Runs one program on tensors, as a module among eager calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import npu_runtime

__all__ = ["ProgramCall", "plain_call"]


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
        # Sees the inputs and results of each run, and returns what is handed on.
        self.watch: Callable[[Sequence[Any], list[torch.Tensor]], list[torch.Tensor]] | None = None
        self._home = torch.device(home)
        self._input_orders = tuple(input_orders)
        self._output_orders = tuple(output_orders)
        self._count = len(self._output_orders)
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
        del results[self._count :]  # indices that only the runtime looks at
        if not self._is_plain_out:
            results = [
                result if order is None else result.permute(order)
                for result, order in zip(results, self._output_orders, strict=True)
            ]
        return results if self.watch is None else self.watch(inputs, results)

    def direct(self, inputs: Sequence[int], outputs: Sequence[int]) -> Callable[..., Any]:
        """Returns what runs a graph that is this call alone.

        Args:
            inputs: which of the graph's inputs the program takes.
            outputs: which of the program's results each of the graph's is.
        """

        def run(*arguments: Any) -> Sequence[torch.Tensor]:
            results = self.forward(*[arguments[place] for place in inputs])
            return tuple([results[index] for index in outputs])

        return run

    def _ordered(self, inputs: Sequence[Any]) -> list[Any]:
        return [
            value if order is None else value.permute(order)
            for value, order in zip(inputs, self._input_orders, strict=True)
        ]


def plain_call(
    program: npu_runtime.Program, input_names: Sequence[str], outputs: int
) -> ProgramCall:
    """Returns a call of a program whose ports have their axes in order, with results on the host.

    Args:
        program: loaded.
        input_names: of its inputs, in order.
        outputs: how many results it has.
    """
    call = ProgramCall(
        program,
        input_orders=(None,) * len(input_names),
        output_orders=(None,) * outputs,
        home="cpu",
    )
    call.input_names = tuple(input_names)
    return call


def _contiguous(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        # A symbolic number that no input has as a size.
        return torch.tensor(value)
    return value.detach().contiguous()

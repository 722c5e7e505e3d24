"""Execution of programs on tensors: OpenVINO programs and kernel programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import npu_runtime
from npu_compiler.errors import LoweringError
from npu_ops.kernel_programs.execution import TensorExecution
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.weights import PackedLinear

__all__ = ["KernelCall", "KernelForm", "ProgramCall", "plain_call", "run_shortcut"]


class ProgramCall(torch.nn.Module):
    """A program as a module, for graphs that also have eager calls."""

    input_names: tuple[str, ...]

    def __init__(
        self,
        program: npu_runtime.Program,
        *,
        input_orders: Sequence[tuple[int, ...] | None],
        output_orders: Sequence[tuple[int, ...] | None],
        home: str,
    ) -> None:
        """Wraps a loaded program, with results on the `home` device.

        Orders permute axes: of an input's bytes, None for the identity, and from a port's result to
        the graph's.
        """
        super().__init__()
        self.program = program
        # Called with the inputs and results of each run; returns the results to pass on.
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
        del results[self._count :]  # indices that only the runtime checks
        if not self._is_plain_out:
            results = [
                result if order is None else result.permute(order)
                for result, order in zip(results, self._output_orders, strict=True)
            ]
        return results if self.watch is None else self.watch(inputs, results)

    def direct(self, inputs: Sequence[int], outputs: Sequence[int]) -> Callable[..., Any]:
        """Returns a function that runs a graph of only this call, by its inputs and outputs."""

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
    """Returns a call of a program with axes in natural order and results on the host."""
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


@dataclass(frozen=True, kw_only=True)
class KernelForm:
    """A kernel program and the tensors that it takes and returns."""

    program: KernelProgram
    rows: int  # number of rows of the tensors
    # Shapes of the inputs, in the program's order.
    inputs: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]  # shapes of the results
    home: str  # device type of the results
    is_alone: bool  # whether it runs only on the calling thread

    def as_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data for from_json."""
        return {
            "program": self.program.as_dict(),
            "rows": self.rows,
            "inputs": self.inputs,
            "results": self.results,
            "home": self.home,
            "is_alone": self.is_alone,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> KernelForm:
        """Reads the data of as_json; KeyError, TypeError or ValueError for another version's."""
        return cls(
            program=KernelProgram.from_dict(content["program"]),
            rows=int(content["rows"]),
            inputs=tuple(tuple(shape) for shape in content["inputs"]),
            results=tuple(tuple(shape) for shape in content["results"]),
            home=str(content["home"]),
            is_alone=bool(content["is_alone"]),
        )


class KernelCall(torch.nn.Module):
    """A kernel program as a module, with the calls of npu_compiler.programs.execution.ProgramCall.

    Attributes:
        input_names: names of its inputs, in order.
        program: runs it on these inputs.
        watch: called with the inputs and results of each run; returns the results to pass on.
    """

    def __init__(
        self,
        form: KernelForm,
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        input_names: Sequence[str],
        name: str,
    ) -> None:
        """Loads a program; uses the memory of its weights without a copy."""
        super().__init__()
        self.input_names = tuple(input_names)
        self.watch: Callable[[Sequence[Any], list[torch.Tensor]], list[torch.Tensor]] | None = None
        self._form = form
        self._weights = dict(weights)
        self._name = name
        self._programs: dict[tuple[int, ...], TensorExecution] = {}
        self.program = self._program_for(range(len(self.input_names)))

    def forward(self, *inputs: Any) -> list[torch.Tensor]:
        """Runs the program; results are new tensors."""
        results = _uncaptured(self.program.run(inputs))
        return results if self.watch is None else self.watch(inputs, results)

    def direct(self, inputs: Sequence[int], outputs: Sequence[int]) -> Callable[..., Any]:
        """Returns a function that runs a graph of only this call, by its inputs and outputs."""
        program = self._program_for(inputs)
        is_plain = self._are_all(outputs)

        def run(*arguments: Any) -> Sequence[torch.Tensor]:
            if self.watch is not None:
                results = self(*[arguments[place] for place in inputs])
            else:
                results = _uncaptured(program.run(arguments))
            return results if is_plain else tuple([results[index] for index in outputs])

        return run

    def shortcut(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        is_current: Callable[[Any], bool] | None,
    ) -> Callable[[tuple[Any, ...]], list[torch.Tensor] | None] | None:
        """Returns a native function that runs such a graph, or None where it cannot.

        There is no such function unless the graph's results are the program's, in its order. For
        `is_current` see TensorExecution.shortcut.
        """
        return self._program_for(inputs).shortcut(is_current) if self._are_all(outputs) else None

    def _are_all(self, outputs: Sequence[int]) -> bool:
        """Whether these are the program's results in order."""
        return list(outputs) == list(range(len(self._form.results)))

    def _program_for(self, inputs: Sequence[int]) -> TensorExecution:
        places = tuple(inputs)
        if places not in self._programs:
            form = self._form
            self._programs[places] = TensorExecution(
                form.program,
                self._weights,
                rows=form.rows,
                arguments=list(zip(places, form.inputs, strict=True)),
                results=form.results,
                device=form.home,
                is_alone=form.is_alone,
                name=self._name,
            )
        return self._programs[places]


def run_shortcut(
    shortcut: Callable[[tuple[Any, ...]], list[torch.Tensor] | None], inputs: tuple[Any, ...]
) -> list[torch.Tensor] | None:
    """Runs a KernelCall.shortcut; returns None for inputs that it refuses.

    The regular path then raises the error.
    """
    try:
        return shortcut(inputs)
    except (MemoryError, ValueError):
        return None


def _uncaptured(results: list[torch.Tensor] | None) -> list[torch.Tensor]:
    if results is None:
        raise LoweringError(
            "kernel program: a captured graph must consist of device programs, got host code. "
            "Compile "
            'with target="openvino".',
            code="no-kernel",
        )
    return results

"""Verification of a compiled graph on its first inputs: as a whole, then program by program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.graph.nodes import copy_graph, is_effectful, is_mutation, op_name, written_inputs
from npu_compiler.verification.comparison import Difference, compare, on_host
from npu_compiler.verification.program_check import ProgramTrial
from npu_compiler.verification.reference import REFUSALS, Reference, standing_in

__all__ = ["GraphTrial", "Outcome", "can_repeat", "keep_original"]


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    `difference` is that of the whole graph if it differs although its programs are right, else
    None; `is_unsteady` if a second run was right.
    """

    results: Any
    difference: Difference | None = None
    is_unsteady: bool = False


def keep_original(module: fx.GraphModule) -> fx.GraphModule | None:
    """Returns a copy of a graph as reference, before passes rewrite it; see can_repeat."""
    return copy_graph(module) if can_repeat(module) else None


def can_repeat(module: fx.GraphModule) -> bool:
    """Whether a graph can be computed twice, for verification.

    False if it draws random numbers, or writes other than by copies into its inputs.
    """
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        is_copy = node.target is torch.ops.aten.copy_.default
        if is_effectful(node) and not is_copy:
            return False
        if is_mutation(node) and not (is_copy and list(written_inputs(node))):
            return False
        if not isinstance(node.target, torch._ops.OpOverload) and "auto_functionalized" in op_name(
            node.target
        ):
            return False
    return True


class GraphTrial:
    """Verifies the runs of a compiled graph."""

    def __init__(self, original: fx.GraphModule | None, programs: Sequence[ProgramTrial]) -> None:
        """Takes the graph from keep_original, or None, and its unverified programs."""
        self._original = original
        self.programs = tuple(programs)
        self._precision = _coarsest(program.precision for program in programs)
        self._written = () if original is None else _written_positions(original)

    @property
    def writes(self) -> bool:
        """Whether the graph writes into its inputs."""
        return bool(self._written)

    def run(self, call: Callable[..., Any], arguments: Sequence[Any]) -> Outcome:
        """Runs the graph once, or twice if the first run is wrong, and verifies its programs."""
        if self._original is None:
            return Outcome(self._by_program(call, arguments))
        before = {position: arguments[position].clone() for position in self._written}
        given = [
            on_host(before[position]).clone() if position in before else value
            for position, value in enumerate(arguments)
        ]
        reference = _Original(self._original, given, self._written, self._precision)
        try:
            expected = reference.results()
        except REFUSALS:
            # Each program is verified separately, to find the cause.
            return Outcome(self._by_program(call, arguments))
        results = call(*arguments)
        first = self._differs(results, arguments, expected, reference)
        if first is None:
            for program in self.programs:
                program.acquit()
            return Outcome(results)
        for position, value in before.items():
            arguments[position].copy_(value)
        results = self._by_program(call, arguments)
        difference = self._differs(results, arguments, expected, reference)
        if difference is None:
            is_blamed = any(program.is_blamed for program in self.programs)
            return Outcome(results) if is_blamed else Outcome(results, first, is_unsteady=True)
        for position, value in zip(self._written, expected[-len(self._written) :], strict=False):
            arguments[position].copy_(value)
        return Outcome(_placed(expected, results), difference)

    def _by_program(self, call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        for program in self.programs:
            program.watch(is_on=True)
        try:
            return call(*arguments)
        finally:
            for program in self.programs:
                program.watch(is_on=False)

    def _differs(
        self,
        results: Any,
        arguments: Sequence[Any],
        expected: Sequence[Any],
        reference: _Original,
    ) -> Difference | None:
        found = [*_leaves(results), *(arguments[position] for position in self._written)]
        return compare(
            found,
            expected,
            precision=self._precision,
            noisy=reference.noisy,
            drops_nan=any(program.drops_nan for program in self.programs),
        )


class _Original:
    """The captured graph: its results, followed by the values written into its inputs."""

    def __init__(
        self, module: fx.GraphModule, given: list[Any], written: Sequence[int], precision: str
    ) -> None:
        self._module, self._given = module, given
        self._written, self._precision = tuple(written), precision

    def results(self) -> list[Any]:
        given = self._fresh()
        found = Reference(self._module, given, precision=self._precision).results()
        return [*found, *(given[position] for position in self._written)]

    def noisy(self) -> Iterator[list[Any]]:
        if not self._written:
            return Reference(self._module, self._given, precision=self._precision).noisy()
        # Writes go to the copies of inputs that each sample makes.
        return Reference(self._module, self._fresh(), precision=self._precision).noisy(
            also_inputs=self._written
        )

    def _fresh(self) -> list[Any]:
        return [
            value.clone() if position in self._written else value
            for position, value in enumerate(self._given)
        ]


def _written_positions(module: fx.GraphModule) -> tuple[int, ...]:
    placeholders = module.graph.find_nodes(op="placeholder")
    found = {node for call in module.graph.nodes for node in written_inputs(call)}
    return tuple(position for position, node in enumerate(placeholders) if node in found)


def _coarsest(precisions: Any) -> str:
    order = ("float32", "float16", "bfloat16")
    return max(precisions, key=order.index, default="float32")


def _leaves(results: Any) -> list[Any]:
    return pytree.tree_leaves(results, is_leaf=lambda value: value is None)


def _placed(expected: Sequence[Any], results: Any) -> list[Any]:
    """Returns torch's results on the devices of the graph's."""
    return [
        standing_in(right, result) if isinstance(result, torch.Tensor) else result
        for result, right in zip(_leaves(results), expected, strict=False)
    ]

"""Checks of a program at its first run, and the search for the wrong part."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import npu_runtime
from npu_compiler.graph.nodes import copy_inputs
from npu_compiler.graph.origins import source_line
from npu_compiler.programs.execution import KernelCall, ProgramCall
from npu_compiler.verification.comparison import Difference, compare
from npu_compiler.verification.reference import REFUSALS, Reference, refusal_text, standing_in
from npu_compiler.verification.result import Verdict

__all__ = ["WORKAROUNDS", "ProgramTrial", "Subject", "cut", "wrong_part"]

# A longer search is aborted, and the whole program is the wrong part.
_TIME_LIMIT_S = 120.0


def wrong_part(
    module: fx.GraphModule, is_wrong: Callable[[fx.GraphModule, Sequence[fx.Node]], bool]
) -> list[fx.Node]:
    """Returns a small set of calls that are wrong together, found by bisection.

    The search takes the shortest wrong prefix of the graph, then its shortest wrong suffix. A
    program that is wrong only as a whole is returned whole.

    Args:
        module: the graph of a program that is wrong.
        is_wrong: compiles a part, runs it on torch's values of its inputs, and compares. Takes the
            part and the nodes of `module` that are its inputs.
    """
    calls = _units(module.graph)
    every = [node for unit in calls for node in unit]
    started = time.monotonic()

    def differs(first: int, last: int) -> bool:
        if time.monotonic() - started > _TIME_LIMIT_S:
            raise TimeoutError
        part = cut(module, [node for unit in calls[first:last] for node in unit])
        return part is not None and is_wrong(*part)

    try:
        if not differs(0, len(calls)):
            return every
        right, wrong = 0, len(calls)
        while wrong - right > 1:
            middle = (right + wrong) // 2
            right, wrong = (right, middle) if differs(0, middle) else (middle, wrong)
        end, first, beyond = wrong, 0, wrong
        while beyond - first > 1:
            middle = (first + beyond) // 2
            first, beyond = (middle, beyond) if differs(middle, end) else (first, middle)
    except TimeoutError:
        return every
    return [node for unit in calls[first:end] for node in unit]


def cut(
    module: fx.GraphModule, calls: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]] | None:
    """Returns some calls of a graph as a separate graph, and the nodes that are its inputs.

    Its outputs are the tensors that other calls read; None if there are none.
    """
    members = set(calls)
    graph = fx.Graph()
    copies, inputs = copy_inputs(graph, calls)
    for node in calls:
        copies[node] = graph.node_copy(node, lambda source: copies[source])
    outputs = [
        node
        for node in calls
        if isinstance(node.meta.get("val"), torch.Tensor)
        and any(user not in members for user in node.users)
    ]
    if not outputs:
        return None
    graph.output(tuple(copies[node] for node in outputs))
    # Placeholders must come first.
    head = next(iter(graph.nodes))
    for source in reversed(inputs):
        if copies[source] is not head:
            head.prepend(copies[source])
            head = copies[source]
    return fx.GraphModule(module, graph), inputs


def _units(graph: fx.Graph) -> list[list[fx.Node]]:
    """Returns the calls of a graph, each with the getitem calls on its tuple."""
    units: dict[fx.Node, list[fx.Node]] = {}
    owners: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        source = node.args[0] if node.args else None
        is_pick = node.target is operator.getitem and isinstance(source, fx.Node)
        owner = owners.get(source, node) if is_pick and isinstance(source, fx.Node) else node
        owners[node] = owner
        units.setdefault(owner, []).append(node)
    return list(units.values())


# Workarounds for a wrong program, in this order. The CPU plugin's generator of fused kernels was
# involved in each wrong result so far (OpenVINO 2026.4.1).
WORKAROUNDS: tuple[Mapping[str, str], ...] = ({"SNIPPETS_MODE": "DISABLE"},)


@dataclass(frozen=True)
class Subject:
    """The data needed to verify a program."""

    name: str  # of the program
    module: fx.GraphModule  # its graph; the placeholders are the program's inputs and weights
    # Returns placeholder name -> weight in the program, as used in its computation, or why it is
    # unknown.
    weights: Callable[[], Mapping[str, torch.Tensor] | str]
    precision: str  # of the computation
    drops_nan: bool  # whether it was compiled to forms that drop NaN
    # Compiles and loads it with further options of the device's compiler; raises
    # npu_runtime.ProgramError if the device refuses it.
    with_options: Callable[[Mapping[str, str]], npu_runtime.Program]
    # Compiles a part of the graph, given the part and the weights among its inputs.
    build_part: Callable[[fx.GraphModule, Mapping[str, torch.Tensor]], ProgramCall]
    keep: Callable[[Verdict], None]  # called with the verdict


class ProgramTrial:
    """Verifies the runs of one program."""

    def __init__(self, call: ProgramCall | KernelCall, subject: Subject) -> None:
        """Takes a program's call, and the data needed to verify it."""
        self._call: Any = call
        self._subject = subject
        self.verdict: Verdict | None = None
        self._is_renewed = False

    @property
    def name(self) -> str:
        """Of the program."""
        return self._subject.name

    @property
    def precision(self) -> str:
        """Precision of the computation."""
        return self._subject.precision

    @property
    def drops_nan(self) -> bool:
        """Whether the program may lose NaN."""
        return self._subject.drops_nan

    @property
    def is_blamed(self) -> bool:
        """Whether a run of the program differed from torch."""
        return self.verdict is not None and self.verdict.status in ("mended", "wrong", "unsteady")

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Returns the calls at a verdict's positions."""
        verdict = self.verdict
        every = list(self._subject.module.graph.nodes)
        return () if verdict is None else tuple(every[position] for position in verdict.nodes)

    def renew(self) -> None:
        """Clears the verdict, before a run on other inputs is verified."""
        self.verdict, self._is_renewed = None, True

    def watch(self, *, is_on: bool) -> None:
        """Starts or stops passing each run's inputs and results to `judge`."""
        self._call.watch = self.judge if is_on else None

    def acquit(self) -> None:
        """Records the program as right, because all results that depend on it are right."""
        self._settle(Verdict("right"))

    def judge(self, inputs: Sequence[Any], results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Compares a run with torch, and tries workarounds if it is wrong.

        Returns the program's results, or torch's if those are wrong.
        """
        subject = self._subject
        weights = subject.weights()
        if isinstance(weights, str):
            self._settle(Verdict("unchecked", weights))
            return results
        given = dict(zip(self._call.input_names, inputs, strict=True)) | dict(weights)
        reference = Reference(
            subject.module,
            [given.get(node.name) for node in subject.module.graph.find_nodes(op="placeholder")],
            precision=subject.precision,
        )
        try:
            expected = reference.results()
        except REFUSALS as failure:
            self._settle(Verdict("unchecked", refusal_text(failure)))
            return results
        difference = self._differ(results, expected, reference)
        if difference is None:
            self.acquit()
            return results
        mended = self._mended(inputs, expected, reference, difference)
        if mended is not None:
            return mended
        self._settle(self._wrong(weights, reference, difference))
        return [standing_in(right, result) for result, right in zip(results, expected, strict=True)]

    def _differ(
        self, results: Sequence[Any], expected: Sequence[Any], reference: Reference
    ) -> Difference | None:
        return compare(
            results,
            expected,
            precision=self._subject.precision,
            noisy=reference.noisy,
            drops_nan=self._subject.drops_nan,
        )

    def _mended(
        self,
        inputs: Sequence[Any],
        expected: Sequence[Any],
        reference: Reference,
        difference: Difference,
    ) -> list[torch.Tensor] | None:
        """Returns right results of a second run, or of the program with a workaround."""
        former, watch = self._call.program, self._call.watch
        self._call.watch = None
        try:
            results: list[torch.Tensor] = self._call(*inputs)
            if self._differ(results, expected, reference) is None:
                self._settle(Verdict("unsteady", str(difference)))
                return results
            for options in WORKAROUNDS:
                try:
                    self._call.program = self._subject.with_options(options)
                    results = self._call(*inputs)
                except npu_runtime.ProgramError:
                    continue
                if self._differ(results, expected, reference) is None:
                    line = self._line_of(difference)
                    self._settle(Verdict("mended", str(difference), dict(options), source=line))
                    return results
            self._call.program = former
            return None
        finally:
            self._call.watch = watch

    def _line_of(self, difference: Difference) -> str | None:
        """Returns the Python line of the result that differs."""
        results = torch.utils._pytree.tree_leaves(self._subject.module.graph.output_node().args[0])
        return source_line(results[difference.output])

    def _wrong(
        self, weights: Mapping[str, torch.Tensor], reference: Reference, difference: Difference
    ) -> Verdict:
        module = self._subject.module
        values = reference.values()
        largest = difference

        def is_wrong(part: fx.GraphModule, sources: Sequence[fx.Node]) -> bool:
            nonlocal largest
            given = {node.name: values[node.name] for node in sources}
            constants = {name: weights[name] for name in given if name in weights}
            try:
                call = self._subject.build_part(part, constants)
            except npu_runtime.NpuError:
                return False
            results = call(*[given[name] for name in call.input_names])
            own = Reference(part, list(given.values()), precision=self._subject.precision)
            found = self._differ(results, own.results(), own)
            largest = found or largest
            return found is not None

        nodes = wrong_part(module, is_wrong)
        positions = {node: position for position, node in enumerate(module.graph.nodes)}
        source = next(filter(None, map(source_line, reversed(nodes))), None)
        places = tuple(positions[node] for node in nodes)
        return Verdict("wrong", str(largest), nodes=places, source=source)

    def _settle(self, verdict: Verdict) -> None:
        self.verdict = verdict
        # A program that is right again may need the workaround stored with the first verdict.
        is_known = self._is_renewed and verdict.status == "right"
        if verdict.status != "unsteady" and not is_known:
            self._subject.keep(verdict)

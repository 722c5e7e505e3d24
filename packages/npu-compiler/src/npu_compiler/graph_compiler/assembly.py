"""Splits a graph by a plan: one program per segment, with eager calls between them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from npu_compiler.errors import LoweringError
from npu_compiler.graph.nodes import copy_inputs, is_symbolic, lazy_module
from npu_compiler.graph_compiler.building import (
    BuiltProgram,
    Piece,
    build_program,
    check_outputs,
    own_precision,
)
from npu_compiler.graph_compiler.failures import report_failure
from npu_compiler.graph_compiler.partition import Plan, Segment
from npu_compiler.graph_compiler.records import ProgramRecord
from npu_compiler.graph_compiler.targets import ProgramFacts, TargetChoice, choose_target
from npu_compiler.kernel_programs.rows import graph_size
from npu_compiler.lowering.host_forms import host_form
from npu_compiler.options import CompilerConfig
from npu_compiler.programs.execution import KernelCall, ProgramCall
from npu_runtime import device_info

__all__ = ["Assembled", "Ports", "assemble"]


@dataclass(frozen=True)
class Assembled:
    """A graph ready to run."""

    run: Callable[..., Any]  # takes the graph's inputs, returns its outputs
    programs: tuple[ProgramRecord, ...]  # records of the programs
    # Placeholder names that became constants of at least one program.
    constant_inputs: frozenset[str]
    built: tuple[BuiltProgram, ...] = ()  # the programs
    ports: Ports | None = None  # how the graph calls its single program; None for any other graph
    # For a single kernel program: takes a check of inputs, and returns a function that runs the
    # graph without Python; see npu_compiler.programs.execution.
    shortcut: Callable[[Any], Callable[..., Any] | None] | None = None


@dataclass(frozen=True)
class Ports:
    """Mapping of a graph to its single program: positions of inputs by name, and of results."""

    places: Mapping[str, int]
    outputs: tuple[int, ...]


def assemble(
    graph_module: fx.GraphModule,
    plan: Plan,
    *,
    constants: Mapping[str, torch.Tensor],
    config: CompilerConfig,
    home: str,
    exact_strides: bool,
    name: str,
    kind: str,
    no_kernels: str | None = None,
) -> Assembled:
    """Lowers and loads each segment, and connects programs and eager calls.

    Args:
        graph_module: the graph that was planned.
        plan: its plan.
        constants: placeholder name -> tensor to freeze.
        config: see CompilerConfig.
        home: device type of the graph's tensors; programs' results live there.
        exact_strides: whether results must have the fake results' strides even if those leave gaps
            (AOTAutograd restrides the outputs of training graphs).
        name: prefix of the programs' names.
        kind: of the graph: inference, forward or backward.
        no_kernels: why its programs must not use npu-ops' kernels; None if they may.

    Raises:
        RefusedNode: plan again without these nodes.
    """
    pieces = [_extract(graph_module, plan, segment) for segment in plan.segments]
    for piece in pieces:
        check_outputs(piece, home=home, exact_strides=exact_strides)
    outer = _Outer(graph_module)
    built: list[BuiltProgram] = []
    frozen: set[str] = set()
    by_level = dict(zip((segment.level for segment in plan.segments), pieces, strict=True))
    calls: dict[int, ProgramCall | KernelCall] = {}
    for index, (level, piece) in enumerate(by_level.items()):
        program_name = name if len(by_level) == 1 else f"{name}/{index}"
        own = {node.name: constants[node.name] for node in piece.inputs if node.name in constants}
        if config.is_for_vendor:
            # Late: few graphs need it.
            from npu_compiler.graph_compiler.vendor_building import build_vendor_program

            program = build_vendor_program(
                piece, constants=own, config=config, home=home, name=program_name, kind=kind
            )
        else:
            choice = _choose(piece, kind=kind, config=config, no_kernels=no_kernels)
            program = _build(
                piece, choice, constants=own, config=config, home=home, name=program_name
            )
        calls[level] = program.call
        built.append(program)
        frozen.update(own)
    whole = outer.build(plan, by_level, calls, frozen)
    ports = _find_ports(whole.graph)
    run: Callable[..., Any] = whole.forward
    shortcut = None
    if ports is not None:
        (call,) = calls.values()
        places = [ports.places[name] for name in call.input_names]
        run = call.direct(places, ports.outputs)
        if isinstance(call, KernelCall):
            shortcut = partial(call.shortcut, places, ports.outputs)
    return Assembled(
        run=run,
        programs=tuple(program.record for program in built),
        constant_inputs=frozenset(frozen),
        built=tuple(built),
        ports=ports,
        shortcut=shortcut,
    )


def _find_ports(outer: fx.Graph) -> Ports | None:
    """Returns how a graph calls its program; None if it does anything else."""
    names = [node.name for node in outer.nodes if node.op == "placeholder"]
    calls = [node for node in outer.nodes if node.op == "call_module"]
    results: dict[Any, int] = {}
    for node in outer.nodes:
        if node.op == "call_function":
            if node.args[0] not in calls or not isinstance(node.args[1], int):
                return None
            results[node] = node.args[1]
    returned = outer.output_node().args[0]
    if len(calls) != 1 or not isinstance(returned, (tuple, list)):
        return None
    if any(node.op != "placeholder" for node in calls[0].args):
        return None
    if not all(isinstance(node, fx.Node) and node in results for node in returned):
        return None
    places = {name: index for index, name in enumerate(names)}
    return Ports(places, tuple(results[node] for node in returned))


def _choose(
    piece: Piece, *, kind: str, config: CompilerConfig, no_kernels: str | None
) -> TargetChoice:
    size = graph_size(piece.module.graph)
    facts = ProgramFacts(
        device=device_info().device,
        kind=kind,
        precision=config.computed_in or own_precision(piece.module.graph),
        rows=None if size is None else size.rows,
        multiplications=0 if size is None else size.multiplications,
        refusal=no_kernels,
    )
    return choose_target(facts, config)


def _build(
    piece: Piece,
    choice: TargetChoice,
    *,
    constants: Mapping[str, torch.Tensor],
    config: CompilerConfig,
    home: str,
    name: str,
) -> BuiltProgram:
    """Builds a piece for the chosen target, or for OpenVINO if a call has no kernel."""
    reason = choice.reason
    if choice.target == "kernels":
        # Late: larger programs do not need kernels.
        from npu_compiler.graph_compiler.kernel_building import build_kernel_program

        try:
            return build_kernel_program(
                piece, constants=constants, config=config, home=home, name=name, choice=choice
            )
        except LoweringError as refusal:
            reason = refusal.reason
        except Exception as failure:  # noqa: BLE001  # any exception here is a defect of the lowering
            report_failure(name, failure, instead="OpenVINO compiles it", is_strict=config.strict)
            reason = f"lowering it to kernels failed: {type(failure).__name__}"
    built = build_program(piece, constants=constants, config=config, home=home, name=name)
    return replace(built, record=replace(built.record, target_reason=reason))


def _needed_symbols(graph: fx.Graph, plan: Plan) -> set[fx.Node]:
    """Returns symbolic numbers that eager calls or the output read, directly or indirectly."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        reads = node.op == "output" or node in plan.eager or node in needed
        if reads:
            needed.update(source for source in node.all_input_nodes if is_symbolic(source))
    return needed


def _extract(graph_module: fx.GraphModule, plan: Plan, segment: Segment) -> Piece:
    graph = fx.Graph()
    members = set(segment.nodes)
    symbols = _Symbols(graph, members)
    # Inputs come before calls, so that the graph starts with its placeholders.
    copies, inputs = copy_inputs(graph, segment.nodes, is_left=is_symbolic)
    for node in segment.nodes:
        for source in node.all_input_nodes:
            if is_symbolic(source) and source not in copies:
                copies[source] = symbols.get(source, copies, inputs)
        copies[node] = graph.node_copy(node, lambda source: copies[source])
    needed = _needed_symbols(graph_module.graph, plan)
    outputs = tuple(
        node
        for node in segment.nodes
        if isinstance(node.meta["val"], torch.Tensor)
        and any(
            user not in members and (not is_symbolic(user) or user in needed) for user in node.users
        )
    )
    graph.output(tuple(copies[node] for node in outputs))
    return Piece(lazy_module(graph_module, graph), tuple(inputs), outputs)


class _Symbols:
    """Symbolic numbers of a piece, recomputed from sizes of its tensors if possible."""

    def __init__(self, graph: fx.Graph, members: set[fx.Node]) -> None:
        self._graph = graph
        self._members = members

    def get(self, node: fx.Node, copies: dict[fx.Node, fx.Node], inputs: list[fx.Node]) -> fx.Node:
        """Returns the piece's node for a symbolic number of the whole graph."""
        if node in copies:
            return copies[node]
        value = node.meta["val"]
        found = None if isinstance(value, (int, float)) else self._as_size(value, inputs, copies)
        if found is not None:
            return found
        sources = node.all_input_nodes
        inside = all(is_symbolic(source) or source in copies for source in sources)
        if node.op == "call_function" and sources and inside:
            for source in sources:
                if is_symbolic(source):
                    copies[source] = self.get(source, copies, inputs)
            return self._graph.node_copy(node, lambda source: copies[source])
        with self._graph.inserting_before(next(iter(self._graph.nodes))):
            copy = self._graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        inputs.insert(0, node)
        return copy

    def _as_size(
        self, value: Any, inputs: list[fx.Node], copies: dict[fx.Node, fx.Node]
    ) -> fx.Node | None:
        if not isinstance(value, torch.SymInt):
            return None
        for source in inputs:
            meta = source.meta["val"]
            if not isinstance(meta, torch.Tensor):
                continue
            sizes: tuple[Any, ...] = tuple(meta.shape)
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt) and size.node.expr == value.node.expr:
                    call = self._graph.call_function(
                        torch.ops.aten.sym_size.int, (copies[source], dim)
                    )
                    call.meta["val"] = value
                    return call
        return None


class _Outer:
    """The graph with each segment replaced by one call."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self._module = graph_module
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}

    def build(
        self,
        plan: Plan,
        pieces: Mapping[int, Piece],
        calls: Mapping[int, ProgramCall | KernelCall],
        frozen: set[str],
    ) -> fx.GraphModule:
        """Returns a module of the graph's inputs."""
        symbols = self._symbols(plan, pieces)
        waiting: dict[int, list[fx.Node]] = {}
        for node in self._module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._copy(node)
            elif node in plan.eager:
                waiting.setdefault(plan.levels[node], []).append(node)
        targets: dict[str, ProgramCall | KernelCall] = {}
        for level in sorted({*waiting, *pieces}):
            self._emit_ready(symbols)
            if level in pieces:
                key = f"program_{len(targets)}"
                targets[key] = calls[level]
                self._call(key, pieces[level], calls[level])
            for node in waiting.get(level, ()):
                self._emit_ready(symbols)
                self._copy(node)
        self._emit_ready(symbols)
        output = next(node for node in self._module.graph.nodes if node.op == "output")
        self._copy(output)
        root = torch.nn.Module()
        for node in self._graph.nodes:
            if node.op == "get_attr":
                setattr(root, node.target, getattr(self._module, node.target))
        for key, call in targets.items():
            setattr(root, key, call)
        return fx.GraphModule(root, self._graph)

    def _symbols(self, plan: Plan, pieces: Mapping[int, Piece]) -> list[fx.Node]:
        """Returns symbolic numbers to compute between programs, in the graph's order."""
        needed = _needed_symbols(self._module.graph, plan)
        taken = {node for piece in pieces.values() for node in piece.inputs if is_symbolic(node)}
        for node in reversed(self._module.graph.nodes):
            if node in taken:
                needed.add(node)
            if node in needed:
                taken.update(source for source in node.all_input_nodes if is_symbolic(source))
        return [
            node
            for node in self._module.graph.nodes
            if node in needed and node.op == "call_function"
        ]

    def _emit_ready(self, symbols: list[fx.Node]) -> None:
        for node in list(symbols):
            if all(source in self._copies for source in node.all_input_nodes):
                self._copy(node)
                symbols.remove(node)

    def _call(self, key: str, piece: Piece, call: ProgramCall | KernelCall) -> None:
        by_name = {node.name: node for node in piece.inputs}
        arguments = tuple(self._plain(by_name[name]) for name in call.input_names)
        result = self._graph.call_module(key, arguments)
        for index, node in enumerate(piece.outputs):
            self._copies[node] = self._graph.call_function(operator.getitem, (result, index))

    def _plain(self, node: fx.Node) -> fx.Node:
        """Resolves a value's negative bit, because programs read raw memory."""
        copy, meta = self._copies[node], node.meta["val"]
        if isinstance(meta, torch.Tensor) and meta.is_neg():
            return self._graph.call_function(torch.ops.aten.resolve_neg.default, (copy,))
        return copy

    def _copy(self, node: fx.Node) -> None:
        copy = self._graph.node_copy(node, lambda source: self._copies[source])
        if node.op == "call_function":
            copy.target = host_form(node.target)
        self._copies[node] = copy

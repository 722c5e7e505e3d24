"""Cuts a graph along a plan: programs lowered and loaded, eager calls between them.

The plan is npu_compiler.partition's, the runs happen in npu_compiler.execution.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import openvino as ov
import torch
from torch import fx

import npu_runtime
from npu_compiler.capability import is_symbolic
from npu_compiler.errors import LoweringError
from npu_compiler.execution import ProgramCall
from npu_compiler.layout import axis_order, inverse_order, is_dense
from npu_compiler.lowering import lower
from npu_compiler.options import CompilerConfig
from npu_compiler.partition import Plan, Segment
from npu_compiler.programs import compile_options, load_tolerant
from npu_compiler.quantize import CompressionReport, compress_weights
from npu_compiler.records import ProgramRecord
from npu_runtime import observe

__all__ = ["Assembled", "RefusedNode", "assemble", "count_calls", "own_precision"]

_HEAVY = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.matmul.default,
    torch.ops.npu.linear_relu.default,
    torch.ops.npu.linear_gelu.default,
    torch.ops.npu.addmm_relu.default,
    torch.ops.npu.conv_bn_relu.default,
    torch.ops.npu.quantized_linear.default,
}


class RefusedNode(Exception):
    """Nodes that turned out not to be lowerable while a plan was carried out."""

    def __init__(self, nodes: Iterable[fx.Node], reason: str) -> None:
        super().__init__(reason)
        # A result of a call stands where its call stands, so the call is what is refused.
        self.names = frozenset(_call_of(node).name for node in nodes)
        self.reason = reason


@dataclass(frozen=True)
class Assembled:
    """A graph ready to run.

    Attributes:
        run: takes the graph's inputs, returns its outputs.
        programs: what was compiled.
        constant_inputs: placeholder names that became constants of at least one program.
    """

    run: Callable[..., Any]
    programs: tuple[ProgramRecord, ...]
    constant_inputs: frozenset[str]


@dataclass(frozen=True)
class _Piece:
    """A segment as a graph of its own."""

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def assemble(
    graph_module: fx.GraphModule,
    plan: Plan,
    *,
    constants: Mapping[str, torch.Tensor],
    config: CompilerConfig,
    home: str,
    exact_strides: bool,
    name: str,
) -> Assembled:
    """Lowers and loads each segment and strings programs and eager calls together.

    Args:
        graph_module: the graph that was planned.
        plan: its plan.
        constants: placeholder name -> tensor to freeze.
        config: see CompilerConfig.
        home: device type of the graph's tensors; programs' results live there.
        exact_strides: whether results must have the strides of the fake ones also where those
            leave gaps (AOTAutograd restrides what a training graph returns).
        name: prefix of the programs' names.

    Raises:
        RefusedNode: plan again without these nodes.
    """
    pieces = [_extract(graph_module, plan, segment) for segment in plan.segments]
    for piece in pieces:
        _check_outputs(piece, home, exact_strides)
    outer = _Outer(graph_module)
    records: list[ProgramRecord] = []
    frozen: set[str] = set()
    by_level = dict(zip((segment.level for segment in plan.segments), pieces, strict=True))
    calls: dict[int, ProgramCall] = {}
    for index, (level, piece) in enumerate(by_level.items()):
        program_name = name if len(by_level) == 1 else f"{name}/{index}"
        own = {node.name: constants[node.name] for node in piece.inputs if node.name in constants}
        call, record = _make_program(piece, own, config, home, program_name)
        calls[level] = call
        records.append(record)
        frozen.update(own)
    run = outer.build(plan, by_level, calls, frozen)
    return Assembled(run, tuple(records), frozenset(frozen))


def _call_of(node: fx.Node) -> fx.Node:
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def count_calls(nodes: Any) -> int:
    """Counts calls as reports do: without symbolic numbers and picks from tuples."""
    return sum(
        node.op == "call_function" and node.target is not operator.getitem and not is_symbolic(node)
        for node in nodes
    )


def _needed_symbols(graph: fx.Graph, plan: Plan) -> set[fx.Node]:
    """Symbolic numbers that eager calls or the output read, directly or through others."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        reads = node.op == "output" or node in plan.eager or node in needed
        if reads:
            needed.update(source for source in node.all_input_nodes if is_symbolic(source))
    return needed


def _extract(graph_module: fx.GraphModule, plan: Plan, segment: Segment) -> _Piece:
    graph = fx.Graph()
    members = set(segment.nodes)
    symbols = _Symbols(graph, members)
    inputs: list[fx.Node] = []
    copies: dict[fx.Node, fx.Node] = {}
    for node in segment.nodes:
        for source in node.all_input_nodes:
            if source in copies or source in members or is_symbolic(source):
                continue
            if source.op == "get_attr":
                copies[source] = graph.node_copy(source)
                continue
            # Inputs are made before calls, so that the graph starts with its placeholders.
            copies[source] = graph.placeholder(source.name)
            copies[source].meta = dict(source.meta)
            inputs.append(source)
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
    return _Piece(fx.GraphModule(graph_module, graph), tuple(inputs), outputs)


class _Symbols:
    """Symbolic numbers of a piece: recomputed inside from sizes of its tensors where possible."""

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


def _check_outputs(piece: _Piece, home: str, exact_strides: bool) -> None:
    for node in piece.outputs:
        meta = node.meta["val"]
        if meta.device.type != home:
            raise RefusedNode([node], f"its result lives on {meta.device}, not on {home}")
        if exact_strides and not is_dense(meta):
            raise RefusedNode([node], "its result leaves gaps in memory or overlaps itself")


def _make_program(
    piece: _Piece,
    constants: Mapping[str, torch.Tensor],
    config: CompilerConfig,
    home: str,
    name: str,
) -> tuple[ProgramCall, ProgramRecord]:
    runtime = [node for node in piece.inputs if node.name not in constants]
    tensors = {node.name: node.meta["val"] for node in runtime}
    input_orders = {
        key: order
        for key, meta in tensors.items()
        if isinstance(meta, torch.Tensor) and (order := axis_order(meta)) is not None
    }
    output_orders = {
        index: order
        for index, node in enumerate(piece.outputs)
        if (order := axis_order(node.meta["val"])) is not None
    }
    started = time.perf_counter()
    with observe.span("compile", "lower", program=name):
        try:
            lowered = lower(
                piece.module,
                constants=constants,
                input_orders=input_orders,
                output_orders=output_orders,
                name=name,
            )
        except LoweringError as error:
            if not error.node_name:
                raise
            named = [node for node in piece.module.graph.nodes if node.name == error.node_name]
            raise RefusedNode(named, error.reason) from error
    lower_time_s = time.perf_counter() - started
    for node in piece.outputs:
        if lowered.values[node.name].get_node().get_type_name() == "Parameter":
            raise RefusedNode([node], "its result is an input as it is")
    precision = config.computed_in or own_precision(piece.module.graph)
    compressed = _compress(lowered.model, config)
    try:
        program = load_tolerant(lowered.model, name=name, options=compile_options(precision))
    except npu_runtime.ProgramError as error:
        calls = [node for node in piece.module.graph.nodes if node.op == "call_function"]
        raise RefusedNode(calls, f"the device refuses the program: {_brief(error)}") from error
    call = ProgramCall(
        program,
        input_orders=[input_orders.get(key) for key in lowered.input_names],
        output_orders=[
            inverse_order(output_orders[index]) if index in output_orders else None
            for index in range(len(piece.outputs))
        ],
        home=home,
    )
    call.input_names = lowered.input_names
    record = ProgramRecord(
        name=name,
        node_count=count_calls(piece.module.graph.nodes),
        input_count=len(lowered.input_names),
        output_count=len(piece.outputs),
        constant_bytes=sum(tensor.nbytes for tensor in constants.values()),
        precision=precision,
        compression=compressed,
        lower_time_s=lower_time_s,
        compile_time_s=program.compile_time_s,
    )
    return call, record


def _compress(model: ov.Model, config: CompilerConfig) -> CompressionReport | None:
    if config.compression is None:
        return None
    return compress_weights(
        model,
        mode=config.compression,
        group_size=config.group_size,
        symmetric=config.symmetric,
    )


def _brief(error: Exception) -> str:
    """A vendor's message on one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def own_precision(graph: fx.Graph) -> str:
    """Returns in which precision a graph computes: the dtype of its products, or the widest."""
    heavy = {node.meta["val"].dtype for node in graph.nodes if node.target in _HEAVY}
    values = (node.meta.get("val") for node in graph.nodes)
    every = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    for dtypes in (heavy, every):
        floats = {dtype for dtype in dtypes if dtype.is_floating_point}
        if floats:
            return str(next(iter(floats))).removeprefix("torch.") if len(floats) == 1 else "float32"
    return "float32"


class _Outer:
    """The graph with each segment replaced by one call."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self._module = graph_module
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}

    def build(
        self,
        plan: Plan,
        pieces: Mapping[int, _Piece],
        calls: Mapping[int, ProgramCall],
        frozen: set[str],
    ) -> Callable[..., Any]:
        """Returns a function of the graph's inputs."""
        symbols = self._symbols(plan, pieces)
        waiting: dict[int, list[fx.Node]] = {}
        for node in self._module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._copy(node)
            elif node in plan.eager:
                waiting.setdefault(plan.levels[node], []).append(node)
        targets: dict[str, ProgramCall] = {}
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
        outer = fx.GraphModule(root, self._graph)
        return outer.forward

    def _symbols(self, plan: Plan, pieces: Mapping[int, _Piece]) -> list[fx.Node]:
        """Symbolic numbers to compute between programs, in the graph's order."""
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

    def _call(self, key: str, piece: _Piece, call: ProgramCall) -> None:
        by_name = {node.name: node for node in piece.inputs}
        arguments = tuple(self._copies[by_name[name]] for name in call.input_names)
        result = self._graph.call_module(key, arguments)
        for index, node in enumerate(piece.outputs):
            self._copies[node] = self._graph.call_function(operator.getitem, (result, index))

    def _copy(self, node: fx.Node) -> None:
        self._copies[node] = self._graph.node_copy(node, lambda source: self._copies[source])

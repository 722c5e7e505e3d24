"""Builds the loaded program of a piece of a graph: from the cache, or lowered and compiled."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import openvino as ov
import torch
from torch import fx

import npu_runtime
from npu_compiler.config import read_settings
from npu_compiler.errors import LoweringError
from npu_compiler.graph.nodes import axis_order, inverse_order, is_dense, is_symbolic, op_name
from npu_compiler.graph.origins import graph_title, node_origins, python_line
from npu_compiler.graph_compiler.debug import dump_program
from npu_compiler.graph_compiler.failures import report_failure
from npu_compiler.graph_compiler.records import ProgramRecord, compression_report, show_model
from npu_compiler.graph_compiler.targets import ProgramContent, is_for_npu, program_content
from npu_compiler.lowering import LoweredModel, is_foreign, lower
from npu_compiler.lowering.transposes import sink_transposes
from npu_compiler.options import CompilerConfig
from npu_compiler.programs import ProgramCache, compile_options, load_tolerant
from npu_compiler.programs.execution import KernelCall, ProgramCall, plain_call
from npu_compiler.programs.index_checks import check_indices
from npu_compiler.quantize import CompressionReport, compress_weights
from npu_compiler.verification.program_check import ProgramTrial, Subject
from npu_compiler.verification.result import Verdict
from npu_runtime import layer_recording, observe

__all__ = [
    "BuiltProgram",
    "Piece",
    "RefusedNode",
    "build_program",
    "check_outputs",
    "coarsest_precision",
    "count_calls",
    "own_precision",
]

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


# The rules of both generations refuse the same operations; they differ in unknown ones.
_GENERATION = "4000"


class RefusedNode(Exception):
    """Nodes that could not be lowered while a plan was executed.

    Attributes:
        reasons: name of the call -> reason. Results belong to their call's segment, so the whole
            call is refused.
    """

    def __init__(self, why: Mapping[fx.Node, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(why.values())))
        self.reasons = {_call_of(node).name: text for node, text in why.items()}


@dataclass(frozen=True)
class Piece:
    """A segment as a separate graph."""

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


@dataclass(frozen=True)
class BuiltProgram:
    """A program ready to call."""

    call: ProgramCall | KernelCall  # of it
    record: ProgramRecord  # its record for reports
    # Its content for cache keys; None if unknown, or if nothing is cached.
    content: ProgramContent | None
    # Per input the order of axes in memory, None for the natural order.
    input_orders: tuple[tuple[int, ...] | None, ...]
    # Per output the permutation from the port's result to the graph's.
    output_orders: tuple[tuple[int, ...] | None, ...]
    home: str  # device type of the results
    # Properties of the device's compiler besides those of the precision.
    device_options: Mapping[str, str]
    # Index checks of each run; see npu_compiler.programs.index_checks.
    index_checks: tuple[Mapping[str, Any], ...] = ()
    # Verifies its runs; None if verification is off.
    trial: ProgramTrial | None = None
    is_judged: bool = False  # whether another process verified its first run


def check_outputs(piece: Piece, *, home: str, exact_strides: bool) -> None:
    """Raises RefusedNode for a result that a program cannot produce."""
    for node in piece.outputs:
        meta = node.meta["val"]
        if meta.device.type != home:
            raise RefusedNode({node: f"its result is on {meta.device}, not on {home}"})
        if exact_strides and not is_dense(meta):
            raise RefusedNode({node: "its result leaves gaps in memory or overlaps itself"})


def build_program(
    piece: Piece,
    *,
    constants: Mapping[str, torch.Tensor],
    config: CompilerConfig,
    home: str,
    name: str,
) -> BuiltProgram:
    """Returns the program of a piece, ready to call, with results on the `home` device.

    Constants become parts of the program. Raises RefusedNode if nodes must leave the plan.
    """
    building = _Building(piece, constants, config, name)
    program, is_cached = building.load()
    if layer_recording.is_wanted():
        layer_recording.tell_origins(name, node_origins(piece.module.graph))
    inputs = tuple(building.facts["inputs"])
    orders = building.output_orders
    input_orders = tuple(building.input_orders.get(key) for key in inputs)
    output_orders = tuple(
        inverse_order(orders[index]) if index in orders else None
        for index in range(len(piece.outputs))
    )
    call = ProgramCall(program, input_orders=input_orders, output_orders=output_orders, home=home)
    call.input_names = inputs
    record = ProgramRecord(
        name=name,
        node_count=count_calls(piece.module.graph.nodes),
        input_count=len(inputs),
        output_count=len(piece.outputs),
        constant_bytes=sum(tensor.nbytes for tensor in constants.values()),
        precision=building.precision,
        compression=building.compression,
        lower_time_s=building.lower_time_s,
        compile_time_s=program.compile_time_s,
        from_cache=is_cached and program.loaded_from_cache,
        drops_nan=tuple(building.facts.get("drops_nan", ())),
        rewritten=tuple(building.facts.get("rewritten", ())),
        verdict=building.verdict,
    )
    return BuiltProgram(
        call=call,
        record=record,
        content=building.content,
        input_orders=input_orders,
        output_orders=output_orders,
        home=home,
        device_options=config.device_options,
        index_checks=tuple(building.facts["index_checks"]),
        trial=building.trial(call),
        is_judged=building.verdict is not None and config.verify == "first",
    )


class _Building:
    """The build of one piece's program."""

    def __init__(
        self,
        piece: Piece,
        constants: Mapping[str, torch.Tensor],
        config: CompilerConfig,
        name: str,
    ) -> None:
        self._piece = piece
        self._constants = constants
        self._config = config
        self._name = name
        self._model = graph_title(piece.module.graph)
        self._lowered: LoweredModel | None = None  # keeps the constants' tensors alive
        self.input_orders = _input_orders(piece, constants)
        self.output_orders = {
            index: order
            for index, node in enumerate(piece.outputs)
            if (order := axis_order(node.meta["val"])) is not None
        }
        self.precision = config.computed_in or own_precision(piece.module.graph)
        self.lower_time_s = 0.0
        self.facts: dict[str, Any] = {}
        self.compression: CompressionReport | None = None
        self.content: ProgramContent | None = None
        self.verdict: Verdict | None = None
        self._key: str | None = None
        self._is_for_npu = is_for_npu(config, npu_runtime.device_info().device)
        self._options = {**compile_options(self.precision), **dict(config.device_options)}

    def load(self) -> tuple[npu_runtime.Program, bool]:
        """Returns the program, and whether it was in the cache."""
        program, is_cached = self._loaded()
        self._lowered = None
        return self._checked(program), is_cached

    def _checked(self, program: npu_runtime.Program) -> npu_runtime.Program:
        """Returns the program with its index checks attached."""
        records = self.facts["index_checks"]
        if not records:
            return program
        nodes = {record["node"] for record in records}
        lines = {
            node.name: (op_name(node.target), python_line(node))
            for node in self._piece.module.graph.nodes
            if node.name in nodes
        }
        return check_indices(program, records, lines)

    def _loaded(self) -> tuple[npu_runtime.Program, bool]:
        options = self._options
        key = self._key = self._make_key()
        try:
            if key is None:
                model, self.facts = self._build()
                return load_tolerant(model, name=self._name, options=options), False
            cache = ProgramCache(self._config.cache_dir)
            if self._config.verify != "off":
                self._read_verdict(cache, key)
            program, self.facts = cache.load_with_facts(
                key, self._build, name=self._name, model=self._model, options=options
            )
        except npu_runtime.ProgramError as error:
            calls = [n for n in self._piece.module.graph.nodes if n.op == "call_function"]
            reason = f"the device refuses the program: {_brief(error)}"
            raise RefusedNode(dict.fromkeys(calls, reason)) from error
        self.compression = compression_report(self.facts["compression"])
        return program, cache.statistics.hits > 0

    def trial(self, call: ProgramCall) -> ProgramTrial | None:
        """Returns the verification of the program's runs, if enabled."""
        if self._config.verify == "off":
            return None
        subject = Subject(
            name=self._name,
            module=self._piece.module,
            weights=self._computed_weights,
            precision=coarsest_precision(self._piece.module.graph, self.precision),
            drops_nan=bool(self.facts.get("drops_nan")),
            with_options=self._with_options,
            build_part=self._build_part,
            keep=self._keep_verdict,
        )
        return ProgramTrial(call, subject)

    def _read_verdict(self, cache: ProgramCache, key: str) -> None:
        """Reads an earlier process's verdict on this program; RefusedNode for wrong calls."""
        self.verdict = verdict = Verdict.from_json(cache.verdict(key))
        if verdict is not None and verdict.status == "wrong":
            every = list(self._piece.module.graph.nodes)
            wrong = (every[position] for position in verdict.nodes)
            raise RefusedNode(dict.fromkeys(wrong, str(verdict)))

    def _keep_verdict(self, verdict: Verdict) -> None:
        self.verdict = verdict
        if self._key is not None:
            ProgramCache(self._config.cache_dir).record_verdict(
                self._key, verdict.as_json(), amendments=verdict.workaround
            )

    def _computed_weights(self) -> Mapping[str, torch.Tensor] | str:
        report = self.compression
        if report is None or not report.weights:
            return self._constants
        from npu_compiler.verification.reference import decompressed  # late: imports openvino

        return decompressed(self._constants, report, symmetric=self._config.symmetric)

    def _with_options(self, further: Mapping[str, str]) -> npu_runtime.Program:
        if self._key is not None:
            program = ProgramCache(self._config.cache_dir).load_amended(
                self._key, name=self._name, options=self._options, amendments=further
            )
            return self._checked(program)
        model, _ = self._build()
        options = {**self._options, **further}
        return self._checked(load_tolerant(model, name=self._name, options=options))

    def _build_part(
        self, part: fx.GraphModule, constants: Mapping[str, torch.Tensor]
    ) -> ProgramCall:
        lowered = lower(
            part,
            constants=constants,
            name=f"{self._name}/part",
            with_frontend=True,
            nan=self._config.nan,
            rounds_casts=self._options.get("INFERENCE_PRECISION_HINT") == "f32",
            disabled_passes=self._config.disabled_passes,
        )
        program = load_tolerant(lowered.model, name=f"{self._name}/part", options=self._options)
        return plain_call(program, lowered.input_names, len(lowered.output_names))

    def _make_key(self) -> str | None:
        if read_settings().cache_size_bytes == 0:
            return None
        with observe.span("compile", "key", program=self._name):
            self.content = program_content(
                self._piece.module,
                weights=self._constants,
                orders=[sorted(self.input_orders.items()), sorted(self.output_orders.items())],
                config=self._config,
            )
            if self.content is None:
                return None
            return self.content.key(self._constants, options=self._options)

    def _build(self) -> tuple[ov.Model, dict[str, Any]]:
        """Lowers the piece; also returns the facts that spare later processes the lowering."""
        started = time.perf_counter()
        with observe.span("compile", "lower", program=self._name):
            self._lowered = lowered = self._lower()
        self.lower_time_s = time.perf_counter() - started
        for node in self._piece.outputs:
            if lowered.values[node.name].get_node().get_type_name() == "Parameter":
                raise RefusedNode({node: "its result is an unchanged input"})
        rewritten = self._fit_npu(lowered.model)
        self.compression = _compress(lowered.model, self._config)
        dump_program(self._name, lowered.model)
        show_model(self._name, lowered.model)
        facts = {
            "inputs": list(lowered.input_names),
            "compression": None if self.compression is None else asdict(self.compression),
            "drops_nan": list(lowered.drops_nan),
            "rewritten": rewritten,
            "index_checks": [asdict(check) for check in lowered.index_checks],
        }
        return lowered.model, facts

    def _fit_npu(self, model: ov.Model) -> list[str]:
        """Rewrites operations that an NPU refuses; RefusedNode for calls without an equal form."""
        if not self._is_for_npu:
            return []
        from npu_compiler.npu_rules.operations import (
            check_operations,  # late: only for an NPU
            varying_operations,
        )
        from npu_compiler.npu_rules.rewriting import rewrite_for_npu

        rewritten = [str(one) for one in rewrite_for_npu(model, generation=_GENERATION)]
        findings = check_operations(model, generation=_GENERATION)
        refused = {
            finding.node: f"an NPU refuses {finding.detail} [{finding.source}]"
            for finding in findings
            if finding.verdict == "refused"
        }
        for name in varying_operations(model):
            refused.setdefault(name.partition("/")[0], "an NPU refuses dynamic shapes")
        if refused:
            calls = [n for n in self._piece.module.graph.nodes if n.op == "call_function"]
            named = {node: refused[node.name] for node in calls if node.name in refused}
            raise RefusedNode(named or dict.fromkeys(calls, next(iter(refused.values()))))
        return rewritten

    def _lower(self) -> LoweredModel:
        module = self._piece.module
        try:
            lowered = lower(
                module,
                constants=self._constants,
                input_orders=self.input_orders,
                output_orders=self.output_orders,
                name=self._name,
                with_frontend=True,
                nan=self._config.nan,
                check_indices=self._config.check_indices,
                fixed_sizes=self._is_for_npu,
                rounds_casts=self._options.get("INFERENCE_PRECISION_HINT") == "f32",
                disabled_passes=self._config.disabled_passes,
            )
            sink_transposes(lowered.model)
            return lowered
        except LoweringError as error:
            if not error.node_name:
                raise
            named = [node for node in module.graph.nodes if node.name == error.node_name]
            if error.code == "converter-failed":
                is_foreign_row = any(is_foreign(node.target) for node in named)
                report_failure(
                    self._name,
                    error,
                    instead="the call runs eagerly",
                    is_strict=False,
                    advice="Fix the converter." if is_foreign_row else "Please report it.",
                )
            raise RefusedNode(dict.fromkeys(named, error.reason)) from error


def _input_orders(
    piece: Piece, constants: Mapping[str, torch.Tensor]
) -> dict[str, tuple[int, ...]]:
    values = {node.name: node.meta["val"] for node in piece.inputs if node.name not in constants}
    return {
        name: order
        for name, value in values.items()
        if isinstance(value, torch.Tensor) and (order := axis_order(value)) is not None
    }


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
    """Returns a vendor's message on one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def own_precision(graph: fx.Graph) -> str:
    """Returns the precision of a graph: the dtype of its products, or the widest."""
    heavy = {node.meta["val"].dtype for node in graph.nodes if node.target in _HEAVY}
    values = (node.meta.get("val") for node in graph.nodes)
    every = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    for dtypes in (heavy, every):
        floats = {dtype for dtype in dtypes if dtype.is_floating_point}
        if floats:
            return str(next(iter(floats))).removeprefix("torch.") if len(floats) == 1 else "float32"
    return "float32"


def coarsest_precision(graph: fx.Graph, computed_in: str) -> str:
    """Returns the coarsest precision of the computation and of values between calls."""
    values = (node.meta.get("val") for node in graph.nodes)
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    if computed_in == "bfloat16" or torch.bfloat16 in dtypes:
        return "bfloat16"
    return "float16" if torch.float16 in dtypes else computed_in


def _call_of(node: fx.Node) -> fx.Node:
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def count_calls(nodes: Any) -> int:
    """Counts calls as reports do, without symbolic numbers and getitem."""
    return sum(
        node.op == "call_function" and node.target is not operator.getitem and not is_symbolic(node)
        for node in nodes
    )

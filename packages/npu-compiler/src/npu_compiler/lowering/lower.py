"""Lowers an FX graph of aten calls to one OpenVINO model by registered converters."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

import npu_compiler.lowering.converters  # noqa: F401  (fills the table)
from npu_compiler.errors import LoweringError
from npu_compiler.graph.nodes import op_name
from npu_compiler.graph.origins import node_place
from npu_compiler.lowering.context import Context, Refused, ov_type, saturate, static_shape
from npu_compiler.lowering.frontend import convert_by_frontend
from npu_compiler.lowering.index_bounds import IndexChecks, IndexRecord
from npu_compiler.lowering.integer_widths import WIDE, integer_widths
from npu_compiler.lowering.registry import (
    Converter,
    bind_arguments,
    find_converter,
    missing_converter,
)
from npu_compiler.passes.registered import rewrite_model
from npu_compiler.plugins import failing_line
from npu_runtime.public_calls import public_call

__all__ = ["LoweredModel", "live_nodes", "lower"]


@dataclass(frozen=True)
class LoweredModel:
    """A graph lowered to an OpenVINO model.

    Attributes:
        model: the model; its constants may read torch's memory, see keep_alive.
        input_names: names of the FX placeholders, in the order of the model's inputs, without those
            that are constants, or unused and not tensors.
        output_names: for each of the model's outputs, the name of its FX node.
        outputs: for each element of the FX graph's (flattened) output, the index of the model's
            output, or None if the element is None or a plain number.
        values: the model's node output for each FX node that the output needs, to extend the model
            (by a cache or a head).
        keep_alive: tensors whose memory the model's constants read; keep them as long as the model.
        node_count: number of lowered FX calls.
        drops_nan: ops lowered to forms that may drop NaN, one entry per call.
        index_checks: the checks of each run. Some read additional outputs of the model, after those
            of the graph.
    """

    model: ov.Model
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    outputs: tuple[int | None, ...]
    values: Mapping[str, Any]
    keep_alive: tuple[torch.Tensor, ...]
    node_count: int
    drops_nan: tuple[str, ...] = ()
    index_checks: tuple[IndexRecord, ...] = ()


@public_call
def lower(
    graph_module: fx.GraphModule,
    *,
    constants: Mapping[str, torch.Tensor] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_orders: Mapping[str, Sequence[int]] | None = None,
    output_orders: Mapping[int, Sequence[int]] | None = None,
    name: str = "graph",
    with_frontend: bool = False,
    nan: str | None = "propagate",
    check_indices: bool = False,
    fixed_sizes: bool = False,
    rounds_casts: bool = False,
    disabled_passes: Iterable[str] | None = None,
) -> LoweredModel:
    """Lowers a whole graph of aten calls to one OpenVINO model.

    Args:
        graph_module: from make_fx or AOTAutograd, with a fake value in each node's `meta["val"]`.
            Symbolic integers among the placeholders become rank-0 int64 inputs.
        constants: placeholder name -> tensor that is frozen into the model without a copy.
            `get_attr` tensors are always frozen.
        input_shapes: placeholder name -> shape with -1 for a dynamic size; by default the fake
            value's shape; its symbolic sizes are dynamic.
        input_orders: placeholder name -> axis order of its memory. The model's input is
            `tensor.permute(order)`, so that a transposed tensor is bound without a copy.
        output_orders: index of a graph output -> axis order of its memory. The model's output is
            `result.permute(order)`.
        name: friendly name of the model.
        with_frontend: let OpenVINO's PyTorch frontend convert calls without a converter.
        nan: "propagate" for forms that propagate NaN as torch does, "fast" for the device's
            operations, None for the device's operations only if "propagate" would break a fusion
            with a product.
        check_indices: record checks for npu_runtime of indices that may be out of range, and of
            inputs with integers that may be too large for the device; see
            npu_compiler.lowering.index_bounds and npu_compiler.lowering.integer_widths.
        fixed_sizes: use forms with sizes that do not depend on values, as an NPU requires, even if
            others are faster on a CPU.
        rounds_casts: round values in the program that are cast to half precision and read in a
            wider type, because the device computes them in float32.
        disabled_passes: names of registered passes over models to skip; None skips all of them.

    Returns:
        The model, and the mapping of its inputs and outputs to the graph's.

    Raises:
        LoweringError: [no-converter] for a call without a converter, [cannot-lower] for a call that
            its converter or OpenVINO rejects, [constant-name] for a constant without a placeholder.
        PassError: [pass-failed], [pass-broke-graph] for a registered pass over models.
    """
    run = _Lowering(
        dict(constants or {}), dict(input_shapes or {}), dict(input_orders or {}), name, nan
    )
    run.with_frontend = with_frontend
    run.check_indices = check_indices
    run.ctx.fixed_sizes = fixed_sizes
    run.ctx.rounds_casts = rounds_casts
    with unset_fake_temporarily():
        lowered = run.lower(graph_module, dict(output_orders or {}))
        if disabled_passes is not None:
            rewrite_model(lowered.model, disabled=disabled_passes)
    return lowered


class _Lowering:
    def __init__(
        self,
        constants: dict[str, torch.Tensor],
        input_shapes: dict[str, Sequence[int]],
        input_orders: dict[str, Sequence[int]],
        name: str,
        nan: str | None,
    ) -> None:
        self._constants = constants
        self._input_shapes = input_shapes
        self._input_orders = input_orders
        self._name = name
        self.with_frontend = False
        self.check_indices = False
        self._checks: IndexChecks | None = None
        self._wide: frozenset[str] = frozenset()
        self.ctx = Context(nan=nan)
        self._parameters: list[ov.op.Parameter] = []
        self._input_names: list[str] = []
        self._named: set[str] = set()
        self._lowered = 0

    def lower(
        self, graph_module: fx.GraphModule, output_orders: dict[int, Sequence[int]]
    ) -> LoweredModel:
        self._check_constant_names(graph_module)
        self.ctx.live = live_nodes(graph_module.graph)
        if self.check_indices:
            self._checks = IndexChecks(graph_module.graph, self._constants)
            widths = integer_widths(graph_module.graph, self._constants)
            self._wide = widths.refused
            self._checks.bound_inputs(widths.bits, widths.readers)
        results: list[Any] = []
        for node in graph_module.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node not in self.ctx.live:
                continue
            elif node.op == "get_attr":
                self._attribute(graph_module, node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                results = list(torch.utils._pytree.tree_leaves(node.args[0]))
            else:
                raise _error(node, f"an FX {node.op} node is not a call of an op", "cannot-lower")
        return self._finish(results, output_orders)

    def _check_constant_names(self, graph_module: fx.GraphModule) -> None:
        known = {node.name for node in graph_module.graph.nodes if node.op == "placeholder"}
        unknown = sorted(set(self._constants) - known)
        if unknown:
            raise LoweringError(
                f"lower: `constants` must be named after placeholders, got {unknown[0]!r}; the "
                f"graph has {', '.join(sorted(known)) or 'none'}. Use one of these names.",
                code="constant-name",
            )

    def _placeholder(self, node: fx.Node) -> None:
        frozen = self._constants.get(node.name)
        if frozen is not None:
            self._bind_constant(node, frozen)
            return
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            if not node.users:
                return
            shape: list[int] = []
            dtype = self.ctx.dtype(node)
        else:
            given = self._input_shapes.get(node.name)
            shape = list(given) if given is not None else _partial_shape(meta)
            dtype = meta.dtype
        order = self._input_orders.get(node.name)
        if order is not None:
            shape = [shape[axis] for axis in order]
        parameter = ops.parameter(ov.PartialShape(shape), ov_type(dtype))
        parameter.set_friendly_name(node.name)
        parameter.get_output_tensor(0).set_names({node.name})
        self._parameters.append(parameter)
        self._input_names.append(node.name)
        value = parameter.output(0)
        if order is not None:
            inverse = [list(order).index(axis) for axis in range(len(order))]
            value = self.ctx.transpose(value, inverse)
        self.ctx.bind(node, value)

    def _attribute(self, graph_module: fx.GraphModule, node: fx.Node) -> None:
        value: Any = graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise _error(
                node, f"attribute {node.target} is a {type(value).__name__}", "cannot-lower"
            )
        node.meta.setdefault("val", value)
        self._bind_constant(node, value)

    def _bind_constant(self, node: fx.Node, tensor: torch.Tensor) -> None:
        output = self.ctx.constant(tensor)
        output.get_node().set_friendly_name(node.name)
        self.ctx.bind(node, output)

    def _call(self, node: fx.Node) -> None:
        row = find_converter(node.target)
        if row is None and not self.with_frontend:
            raise _error(node, missing_converter(node.target), "no-converter")
        if node.name in self._wide:
            raise _error(node, WIDE, "cannot-lower")
        self.ctx.node = node
        try:
            kept = self._guard_indices(node)
            if row is None:
                value = convert_by_frontend(self.ctx, node)
            else:
                arguments = bind_arguments(node)
                reason = row.rule(node, **arguments) if row.rule else None
                if reason is not None:
                    raise Refused(reason)
                value = row.function(self.ctx, **arguments)
        except Refused as refusal:
            raise _error(node, str(refusal), "cannot-lower") from refusal
        except Exception as failure:
            if isinstance(failure, RuntimeError) and not _is_from_converter(failure, row):
                first = str(failure).strip().splitlines()
                text = first[-1] if first else type(failure).__name__
                raise _error(node, f"OpenVINO rejects it: {text}", "cannot-lower") from failure
            where = _line_of(failure, row)
            text = f"its converter fails at {where} with {type(failure).__name__}: {failure}"
            raise _error(node, text, code="converter-failed") from failure
        for index, output in kept.items():
            self.ctx.bind(index, output)
        value = _as_outputs(value)
        self.ctx.bind(node, value)
        self._name_nodes(node, value)
        self._lowered += 1

    def _guard_indices(self, node: fx.Node) -> dict[fx.Node, Any]:
        """Replaces a call's indices by safe values; returns the original indices."""
        if self._checks is None:
            return {}
        safe = self._checks.guard(self.ctx, node)
        kept = {index: self.ctx.value(index) for index in safe}
        for index, output in safe.items():
            self.ctx.bind(index, output)
        return kept

    def _name_nodes(self, node: fx.Node, value: Any) -> None:
        """Names the OpenVINO nodes of one call after the FX node, to find the Python line."""
        base = f"{node.name}/{op_name(node.target)}"
        outputs = value if isinstance(value, tuple) else (value,)
        known = {id_of for arg in node.all_input_nodes for id_of in _ids(self.ctx, arg)}
        stack = [(output.get_node(), True) for output in outputs if output is not None]
        while stack:
            current, is_result = stack.pop()
            unique = current.get_name()
            if unique in self._named or unique in known:
                continue
            self._named.add(unique)
            kind = current.get_type_name()
            if kind == "Constant" or kind == "Parameter":
                continue
            if current.get_friendly_name() == unique:  # the converter has not named it
                current.set_friendly_name(base if is_result else f"{base}/{kind}")
            stack.extend((source.get_node(), False) for source in current.input_values())

    def _finish(self, results: list[Any], output_orders: dict[int, Sequence[int]]) -> LoweredModel:
        outputs: list[int | None] = []
        names: list[str] = []
        model_results: list[Any] = []
        for position, result in enumerate(results):
            if not isinstance(result, fx.Node):
                outputs.append(None)
                continue
            value = self.ctx.get(result)
            order = output_orders.get(position)
            if order is not None:
                value = self.ctx.transpose(value, order)
            if value.get_node().get_type_name() == "Parameter":
                value = _copied(value)
            node = ops.result(value)
            node.set_friendly_name(f"{result.name}/result")
            outputs.append(len(model_results))
            names.append(result.name)
            model_results.append(node)
        checks: tuple[IndexRecord, ...] = ()
        if self._checks is not None:
            told, checks = self._checks.finish(
                self._input_names, self._input_orders, len(model_results)
            )
            model_results.extend(map(ops.result, told))
        model = ov.Model(model_results, self._parameters, self._name)
        saturate(model)
        return LoweredModel(
            model=model,
            input_names=tuple(self._input_names),
            output_names=tuple(names),
            outputs=tuple(outputs),
            values={node.name: value for node, value in self.ctx.bound()},
            keep_alive=tuple(self.ctx.keep_alive),
            node_count=self._lowered,
            drops_nan=tuple(op_name(node.target) for node in self.ctx.drops_nan),
            index_checks=checks,
        )


def live_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes that the graph's output needs."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live:
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _partial_shape(meta: torch.Tensor) -> list[int]:
    return [-1 if size is None else size for size in static_shape(meta)]


def _copied(parameter: ov.Output) -> ov.Output:
    """Adds a copy between an input and an equal output.

    Otherwise the CPU plugin merges the two and writes nothing to a bound output (OpenVINO
    2026.4.1).
    """
    make = ops.logical_or if parameter.get_element_type() == ov.Type.boolean else ops.maximum
    return make(parameter, parameter).output(0)


def _as_outputs(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(None if part is None else _as_outputs(part) for part in value)
    return value if isinstance(value, ov.Output) else value.output(0)


def _ids(ctx: Context, node: fx.Node) -> list[str]:
    value = ctx.value(node)
    outputs = value if isinstance(value, tuple) else (value,)
    return [output.get_node().get_name() for output in outputs if output is not None]


def _is_from_converter(failure: RuntimeError, row: Converter | None) -> bool:
    """Whether the error is from another wheel's converter, and not from OpenVINO."""
    if row is None or row.function.__module__.startswith("npu_compiler."):
        return False
    if any(mark in str(failure) for mark in ("Exception from src/", "failed at src/")):
        return False
    *_, (innermost, _) = traceback.walk_tb(failure.__traceback__)
    return not str(innermost.f_globals.get("__name__")).startswith("openvino")


def _line_of(failure: Exception, row: Converter | None) -> str:
    """Returns file and line of the last call in the converter's file, or of the converter."""
    if row is not None:
        return failing_line(failure, row.place)
    *_, (innermost, line) = traceback.walk_tb(failure.__traceback__)
    return f"{innermost.f_code.co_filename}:{line}"


def _error(node: fx.Node, reason: str, code: str) -> LoweringError:
    return LoweringError(
        f"Cannot lower {op_name(node.target)} ({node_place(node)}): {reason}. "
        "Register a converter for the call, or let it run eagerly.",
        code=code,
        node_name=node.name,
        reason=reason,
    )

"""Lowers whole graphs of tensors to kernel programs, call by call."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.errors import LoweringError
from npu_compiler.graph.nodes import is_effectful
from npu_compiler.kernel_programs.calls import ACTIVATIONS, is_cast, is_moving, norm_call
from npu_compiler.kernel_programs.draft import Line, Part, place
from npu_compiler.kernel_programs.evaluation import no_kernel
from npu_compiler.kernel_programs.fusion import fuse
from npu_compiler.kernel_programs.lowering import as_program
from npu_compiler.kernel_programs.rows import BATCH_NORM, NORMS, PRODUCTS, derive_rows
from npu_compiler.kernel_programs.tensor_values import Shown, TensorValues
from npu_ops.kernel_programs.program import KernelProgram, NormOptions, Recipe
from npu_ops.kernel_programs.weights import PackedLinear

__all__ = [
    "LoweredTensors",
    "TensorCalls",
    "lower_tensors_to_kernels",
]

_aten = torch.ops.aten
_npu = torch.ops.npu
_SUMS: Mapping[Any, int] = {
    _aten.add.Tensor: 1,
    _aten.add.Scalar: 1,
    _aten.sub.Tensor: -1,
    _aten.sub.Scalar: -1,
    _aten.rsub.Tensor: -1,
    _aten.rsub.Scalar: -1,
}
_REVERSED = (_aten.rsub.Tensor, _aten.rsub.Scalar)
_MULTIPLIES = (_aten.mul.Tensor, _aten.mul.Scalar)
_DIVIDES = (_aten.div.Tensor, _aten.div.Scalar)
# Ops with a tuple of results, of which only the first is computed.
_FIRST_OF_TUPLE = (_aten.native_layer_norm.default, BATCH_NORM)


class TensorCalls:
    """Adds lines for calls to a draft."""

    def __init__(self, graph_module: fx.GraphModule, values: TensorValues) -> None:
        """Takes a graph, and the values of its nodes so far."""
        self._module = graph_module
        self._values = values
        self._parts_of: dict[fx.Node, list[Shown]] = {}  # calls that split

    def take(self, node: fx.Node) -> None:
        """Lowers a call; a missing kernel is an error only if its result is used."""
        is_fixed = all(before in self._values.fixed for before in node.all_input_nodes)
        try:
            if is_fixed and not is_effectful(node):
                self._values.fixed[node] = self._values.evaluated(node)
            else:
                self._call(node)
        except LoweringError as refusal:
            self._values.refusals[node] = refusal

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        args: Any = node.args
        if target in PRODUCTS:
            self._product(node, PRODUCTS[target])
        elif target in NORMS or target is BATCH_NORM:
            if target not in _FIRST_OF_TUPLE:
                self._norm(node, node)
        elif target is operator.getitem and args[0].target in _FIRST_OF_TUPLE:
            self._first_of_tuple(node)
        elif is_moving(node):
            self._move(node)
        elif target in ACTIVATIONS:
            name = ACTIVATIONS[target](node)
            if name is None:
                raise no_kernel(node, "has options that no kernel supports")
            self._values.add(node, "combine", {"left": self._values.part(args[0])}, activation=name)
        elif target in _SUMS or target in _MULTIPLIES or target in _DIVIDES:
            self._combine(node)
        elif target is _aten.neg.default:
            self._values.add(node, "combine", {"left": self._values.part(args[0])}, factor=-1.0)
        else:
            raise no_kernel(node, "is not supported by kernels")

    def _product(self, node: fx.Node, form: str) -> None:
        args: Any = (*node.args, None, None)
        bias, x, weight = args[:3] if form == "addmm" else (args[2], args[0], args[1])
        bias = None if form == "mm" else bias
        matrix = self._values.fixed.get(weight)
        if matrix is None:
            raise no_kernel(node, "multiplies by a value that is not constant")
        scales = [node.kwargs.get(name, 1) for name in ("alpha", "beta")]
        if matrix.dim() != 2 or matrix.dtype is not torch.float32 or scales != [1, 1]:
            raise no_kernel(node, "has a weight or factors that no kernel supports")
        part = self._values.rows_of(x, node)
        recipe = Recipe(
            sources=(self._values.source(weight, matrix),),
            kind="linear",
            transposed=form != "linear",
        )
        fields: dict[str, Any] = {"weight": self._values.draft.weight(recipe), "bias": None}
        if bias is not None:
            fields["bias"] = self._values.spread(node, bias)
        target: Any = node.target
        if target in (_npu.linear_relu.default, _npu.addmm_relu.default):
            fields["activation"] = "relu"
        elif target is _npu.linear_gelu.default:
            kind = node.kwargs.get("approximate", args[3] or "none")
            fields["activation"] = {"none": "gelu", "tanh": "gelu_tanh"}[str(kind)]
        self._values.add(node, "linear", {"input": part}, **fields)

    def _first_of_tuple(self, node: fx.Node) -> None:
        owner: Any = node.args[0]
        if node.args[1] != 0:
            raise no_kernel(node, "is a statistic of a norm")
        if owner.target is BATCH_NORM:
            self._batch_norm(node, owner)
        else:
            self._norm(node, owner)

    def _norm(self, node: fx.Node, call: fx.Node) -> None:
        args: Any = (*call.args, None, None, None)
        x, bias = args[0], None
        if call.target is _npu.rms_norm.default:
            weight, eps = args[1], args[2]
            eps = call.kwargs.get("eps", 1e-6) if eps is None else eps
        else:
            if len(args[1]) != 1:
                raise no_kernel(node, "normalizes more than a row's last dimension")
            weight, eps = args[2], args[4]
            if call.target is _aten.rms_norm.default:
                eps = args[3]
                eps = torch.finfo(torch.float32).eps if eps is None else eps
            else:
                bias = args[3]
                eps = 1e-5 if eps is None else eps
        is_layer = call.target in (_aten.layer_norm.default, _aten.native_layer_norm.default)
        self._normalize(
            node, x, "layer" if is_layer else "rms", float(eps), weight=weight, bias=bias
        )

    def _normalize(
        self,
        node: fx.Node,
        x: Any,
        kind: Any,
        eps: float,
        *,
        weight: fx.Node | None = None,
        bias: fx.Node | None = None,
    ) -> None:
        part = self._values.part(x)
        last = int(x.meta["val"].shape[-1])
        if part.width % last:
            raise no_kernel(node, f"normalizes {last} elements, rows have {part.width}")
        vectors = {}
        for name, vector in (("weight", weight), ("bias", bias)):
            if vector is None:
                continue
            fixed = self._values.fixed.get(vector)
            if fixed is None or tuple(fixed.shape) != (last,):
                raise no_kernel(node, f"has a {name} that is not constant")
            vectors[name] = self._values.vector(vector.name, fixed)
        options = NormOptions(kind=kind, eps=eps, parts=part.width // last, **vectors)
        self._values.add(node, "norm", {"input": part}, options=options)

    def _batch_norm(self, node: fx.Node, call: fx.Node) -> None:
        args: Any = call.args
        x = args[0]
        weight, bias, mean, variance = (self._values.fixed.get(one) for one in args[1:5])
        if x.meta["val"].dim() != 2 or mean is None or variance is None:
            raise no_kernel(node, "normalizes other dimensions than a row's")
        if (weight is None, bias is None) != (args[1] is None, args[2] is None):
            raise no_kernel(node, "has a weight or bias that is not constant")
        scale = torch.rsqrt(variance + args[6])
        if weight is not None:
            scale = scale * weight
        shift = -mean * scale
        if bias is not None:
            shift = shift + bias
        scaled = self._values.draft.add(
            "combine",
            self._values.width(node),
            {"left": self._values.rows_of(x, node)},
            op="mul",
            vector=self._values.vector(f"{node.name}.scale", scale),
        )
        name = self._values.vector(f"{node.name}.shift", shift)
        self._values.add(node, "combine", {"left": scaled}, op="add", vector=name)

    def _move(self, node: fx.Node) -> None:
        """Lowers a call that only moves elements, by execution on element numbers."""
        target: Any = node.target
        args: Any = node.args
        source = args[0]
        if target is operator.getitem and source in self._parts_of:
            index = int(args[1])
            self._values.shown[node] = self._parts_of[source][index]
            return
        if source in self._values.refusals:
            raise self._values.refusals[source]
        if source not in self._values.shown:
            raise no_kernel(node, "moves something that is not a value")
        shown = self._values.shown[source]
        if is_cast(node):
            self._values.width(node)
            self._values.shown[node] = shown
            return
        shape = source.meta["val"].shape
        numbers = shown.numbers
        if numbers is None:
            numbers = torch.arange(self._values.rows * self._values.draft.widths[shown.value]).view(
                shape
            )
        try:
            moved: Any = target(numbers, *args[1:], **node.kwargs)
        except (RuntimeError, TypeError) as failure:
            raise no_kernel(node, "moves elements in an unknown way") from failure
        if isinstance(moved, torch.Tensor):
            self._values.shown[node] = Shown(shown.value, moved)
        else:
            self._parts_of[node] = [Shown(shown.value, part) for part in moved]

    def _combine(self, node: fx.Node) -> None:
        """Lowers a sum, difference, product or quotient of rows, constants and numbers."""
        norm = norm_call(node, self._module) if node.target in _MULTIPLIES else None
        if norm is not None and norm.weight is None:
            self._normalize(node, norm.x, norm.kind, norm.eps)
            return
        target: Any = node.target
        args: Any = node.args
        left, right = (args[1], args[0]) if target in _REVERSED else (args[0], args[1])
        alpha: Any = node.kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        are_rows = [
            one in self._values.shown or one in self._values.refusals for one in (left, right)
        ]
        if all(are_rows):
            if left.meta["val"].shape != right.meta["val"].shape:
                raise no_kernel(node, "broadcasts a value over others")
            one, other = self._values.part(left), self._values.part(right)
            if target in _DIVIDES:
                raise no_kernel(node, "divides by a computed value")
            if target in _SUMS:
                factor = float(_SUMS[target] * alpha)
                self._values.add(
                    node, "combine", {"left": other, "right": one}, op="add", factor=factor
                )
            else:
                self._values.add(node, "combine", {"left": one, "right": other}, op="mul")
            return
        rows, operand = (left, right) if are_rows[0] else (right, left)
        if rows.meta["val"].shape != node.meta["val"].shape:
            raise no_kernel(node, "broadcasts rows over others")
        reads = {"left": self._values.part(rows)}
        if target in _SUMS:
            sign = float(_SUMS[target])
            factor = sign * float(alpha) if not are_rows[0] else 1.0
            other_factor = sign * float(alpha) if are_rows[0] else 1.0
            name = self._scaled(node, operand, other_factor)
            self._values.add(node, "combine", reads, op="add", vector=name, factor=factor)
        elif target in _MULTIPLIES:
            if isinstance(operand, (int, float)):
                self._values.add(node, "combine", reads, factor=float(operand))
            else:
                self._values.add(
                    node, "combine", reads, op="mul", vector=self._values.spread(node, operand)
                )
        else:
            self._divide(node, operand, reads, is_divisor=are_rows[0])

    def _scaled(self, node: fx.Node, operand: Any, factor: float) -> str:
        name = self._values.spread(node, operand)
        if factor == 1.0:
            return name
        (source,) = self._values.draft.weights[name].sources
        return self._values.vector(f"{source}.scaled", self._values.sources[source] * factor)

    def _divide(
        self, node: fx.Node, operand: Any, reads: dict[str, Part], *, is_divisor: bool
    ) -> None:
        if not is_divisor or node.kwargs.get("rounding_mode") is not None:
            raise no_kernel(node, "divides by a computed value")
        if isinstance(operand, (int, float)):
            if operand == 0 or not math.isfinite(1 / operand):
                raise no_kernel(node, "divides by a number whose inverse is infinite")
            self._values.add(node, "combine", reads, factor=1 / operand)
            return
        name = self._values.spread(node, operand)
        (source,) = self._values.draft.weights[name].sources
        inverse = 1 / self._values.sources[source]
        if not bool(inverse.isfinite().all()):
            raise no_kernel(node, "divides by a number whose inverse is infinite")
        name = self._values.vector(f"{source}.inverse", inverse)
        self._values.add(node, "combine", reads, op="mul", vector=name)


@dataclass(frozen=True)
class LoweredTensors:
    """The kernel program of a graph: row count, placeholders in order, weights by name."""

    program: KernelProgram
    rows: int
    inputs: tuple[fx.Node, ...]
    weights: Mapping[str, PackedLinear | torch.Tensor]


def lower_tensors_to_kernels(
    graph_module: fx.GraphModule, constants: Mapping[str, torch.Tensor]
) -> LoweredTensors:
    """Lowers a functional float32 graph with independent rows.

    Shapes are fixed, and derive_rows gives the rows. Each call is checked against them; a call that
    moves elements is executed on element numbers, to detect a mix of rows. Raises [no-kernel] for a
    call without a kernel, or that mixes rows.
    """
    graph = graph_module.graph
    values = TensorValues(graph_module, constants, derive_rows(graph, constants))
    calls = TensorCalls(graph_module, values)
    inputs: list[fx.Node] = []
    for node in graph.nodes:
        if node.op == "placeholder" and node.name not in constants:
            if node.users:
                values.load(node, len(inputs))
                inputs.append(node)
        elif node.op in ("placeholder", "get_attr"):
            values.fix(node)
        elif node.op == "call_function":
            calls.take(node)
    results: Any = graph.output_node().args[0]
    draft = values.draft
    for index, node in enumerate(results):
        reads = {"input": values.part(node)}
        draft.lines.append(Line("store", -1, reads, {"result": index}, ""))
    values.drop_unread()
    fuse(draft, values.sources)
    buffers, widths = place(draft, Part(-1, 0, 0))
    program = as_program(draft, buffers, widths, layers=(), logits=None)
    weights = {name: values.packed(recipe) for name, recipe in program.weights.items()}
    return LoweredTensors(program, values.rows, tuple(inputs), weights)

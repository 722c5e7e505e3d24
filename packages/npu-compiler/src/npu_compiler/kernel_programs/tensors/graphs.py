"""lower_tensors_to_kernels: from a graph of tensors with fixed shapes to a kernel program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.draft import Line, Part
from npu_compiler.kernel_programs.fusion import fuse
from npu_compiler.kernel_programs.lowering import as_program
from npu_compiler.kernel_programs.placement import place
from npu_compiler.kernel_programs.tensors.calls import NORMS, PRODUCTS, TensorCalls
from npu_compiler.kernel_programs.tensors.values import TensorValues
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.weights import PackedLinear

__all__ = ["GraphSize", "LoweredTensors", "graph_size", "lower_tensors_to_kernels"]


@dataclass(frozen=True)
class GraphSize:
    """How much a graph computes.

    Attributes:
        rows: of its first product or norm; without one, of its result.
        multiplications: of its products.
    """

    rows: int
    multiplications: int


@dataclass(frozen=True)
class LoweredTensors:
    """A kernel program of a graph.

    Attributes:
        program: it.
        rows: how many rows the tensors have.
        inputs: the placeholders that it loads, in order.
        weights: as the program names them.
    """

    program: KernelProgram
    rows: int
    inputs: tuple[fx.Node, ...]
    weights: Mapping[str, PackedLinear | torch.Tensor]


def graph_size(graph: fx.Graph) -> GraphSize | None:
    """Returns how much a graph computes; None where its sizes vary."""
    rows, multiplications = 0, 0
    for node in graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else (value,)
        for one in values:
            if isinstance(one, torch.Tensor) and not all(type(size) is int for size in one.shape):
                return None
        place = 1 if PRODUCTS.get(node.target) == "addmm" else 0
        if node.target in PRODUCTS or node.target in NORMS:
            x = node.args[place].meta["val"]
            width = x.shape[-1] if x.dim() else 1
            rows = rows or x.numel() // max(width, 1)
            if node.target in PRODUCTS:
                multiplications += value.numel() * width
    if not rows:
        results = torch.utils._pytree.tree_leaves(graph.output_node().args[0])
        values = [one.meta["val"] for one in results if isinstance(one, fx.Node)]
        widths = [one.shape[-1] for one in values if one.dim()]
        rows = max(
            (v.numel() // max(w, 1) for v, w in zip(values, widths, strict=False)), default=0
        )
    return GraphSize(rows, multiplications)


def lower_tensors_to_kernels(
    graph_module: fx.GraphModule, constants: Mapping[str, torch.Tensor]
) -> LoweredTensors:
    """Lowers a graph whose rows have nothing to do with one another.

    The shapes are fixed. Rows are the leading dimensions of a product's or a norm's input, taken
    together; a call that would mix them is noticed by computing where it moves elements.

    Args:
        graph_module: functional, of float32; outputs are a tuple of its calls.
        constants: placeholder name -> weight.

    Raises:
        LoweringError: [no-kernel] for a call that no kernel computes, or that mixes rows.
    """
    graph = graph_module.graph
    size = graph_size(graph)
    values = TensorValues(graph_module, constants, 0 if size is None else size.rows)
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

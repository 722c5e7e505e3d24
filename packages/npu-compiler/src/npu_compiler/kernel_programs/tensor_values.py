"""Values of the nodes of a tensor graph in a kernel program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.errors import LoweringError
from npu_compiler.graph.origins import node_origins
from npu_compiler.kernel_programs.draft import Draft, Part
from npu_compiler.kernel_programs.evaluation import no_kernel
from npu_ops.kernel_programs.program import Recipe
from npu_ops.kernel_programs.weights import PackedLinear, interleave, pack
from npu_runtime.npu import as_cpu

__all__ = ["Shown", "TensorValues"]


@dataclass(frozen=True)
class Shown:
    """A node's view of a value: the element number row * width + column of each element.

    None is the identity.
    """

    value: int
    numbers: torch.Tensor | None = None


class TensorValues:
    """Maps the nodes of a graph to rows, constants and weights.

    Attributes:
        rows: number of rows of each value.
        draft: draft of the program.
        shown: views of nodes with rows.
        refusals: reasons why nodes have no kernel.
        fixed: values of constant nodes.
        sources: source tensors of weights, by name.
    """

    def __init__(
        self, graph_module: fx.GraphModule, constants: Mapping[str, torch.Tensor], rows: int
    ) -> None:
        """Takes a graph of tensors with fixed shapes, its weights by name, and its row count."""
        self.rows = rows
        self.draft = Draft()
        self.shown: dict[fx.Node, Shown] = {}
        self.refusals: dict[fx.Node, LoweringError] = {}
        self.fixed: dict[fx.Node, Any] = {}
        self.sources: dict[str, torch.Tensor] = {}
        self._modules = {
            name: module for name, (module, _) in node_origins(graph_module.graph).items()
        }
        self._graph_module = graph_module
        self._constants = constants

    def load(self, node: fx.Node, number: int) -> None:
        """Adds a placeholder as the program's input with an index."""
        part = self.draft.add("load", self.width(node), {}, argument=number)
        self.shown[node] = Shown(part.value)

    def fix(self, node: fx.Node) -> None:
        """Adds a weight or a constant tensor of the graph."""
        if node.op == "placeholder":
            self.fixed[node] = _on_host(self._constants[node.name])
        else:
            self.fixed[node] = _on_host(getattr(self._graph_module, str(node.target)))

    def source(self, node: fx.Node, tensor: torch.Tensor) -> str:
        """Returns the name of a node's tensor among the sources of weights."""
        self.sources[node.name] = tensor
        return node.name

    def vector(self, name: str, tensor: torch.Tensor) -> str:
        """Returns the name of a weight for a vector."""
        self.sources[name] = tensor.detach().float().contiguous()
        return self.draft.weight(Recipe(sources=(name,), kind="vector"))

    def packed(self, recipe: Recipe) -> PackedLinear | torch.Tensor:
        """Returns a packed copy of a weight for the program."""
        sources = [self.sources[name] for name in recipe.sources]
        if recipe.transposed:
            sources = [source.t() for source in sources]
        joined = torch.cat(sources) if len(sources) > 1 else sources[0]
        if recipe.interleaved:
            joined = interleave(*joined.chunk(2))
        # A copy, because the program is specialized to the current weights.
        return pack(joined, "float32") if recipe.kind == "linear" else joined.clone()

    def width(self, node: fx.Node) -> int:
        """Returns the number of columns of a node's value, after checks of dtype and size."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
            kind = getattr(value, "dtype", type(value).__name__)
            raise no_kernel(node, f"is of {str(kind).removeprefix('torch.')}, not float32")
        if self.rows == 0 or value.numel() == 0:
            raise no_kernel(node, "has no rows")
        if value.numel() % self.rows:
            raise no_kernel(node, f"has {value.numel()} elements, which are not {self.rows} rows")
        return int(value.numel()) // self.rows

    def part(self, node: Any) -> Part:
        """Returns the columns of a node in the graph's rows; LoweringError without rows."""
        if node in self.refusals:
            raise self.refusals[node]
        if node not in self.shown:
            raise no_kernel(node, "has no rows, although rows are read")
        shown = self.shown[node]
        whole = self.draft.whole(shown.value)
        if shown.numbers is None:
            return whole
        by_row = shown.numbers.reshape(self.rows, self.width(node))
        rows = torch.arange(self.rows)[:, None]
        if not torch.equal(by_row // whole.width, rows.expand_as(by_row)):
            raise no_kernel(node, "moves elements from one row to another")
        first, count = int(by_row[0, 0]), by_row.shape[1]
        if not torch.equal(by_row, rows * whole.width + torch.arange(first, first + count)):
            raise no_kernel(node, "reads columns in another order")
        return Part(shown.value, first, count)

    def rows_of(self, node: Any, owner: fx.Node) -> Part:
        """Returns the columns of a node whose last dimension is a row."""
        value = node.meta["val"]
        part = self.part(node)
        if value.dim() == 0 or value.shape[-1] != part.width:
            raise no_kernel(owner, "has other rows than the calls before it")
        return part

    def add(self, node: fx.Node, kind: Any, reads: dict[str, Part], **fields: Any) -> None:
        """Adds a line that computes a node."""
        part = self.draft.add(
            kind, self.width(node), reads, module=self._modules.get(node.name, ""), **fields
        )
        self.shown[node] = Shown(part.value)

    def drop_unread(self) -> None:
        """Drops unread lines, such as parts of a norm that became one instruction."""
        read: set[int] = set()
        for line in reversed(list(self.draft.lines)):
            if line.kind in ("store", "load") or line.out in read:
                read.update(part.value for part in line.reads.values())
            else:
                self.draft.lines.remove(line)

    def evaluated(self, node: fx.Node) -> Any:
        """Evaluates a call of constants."""
        target: Any = node.target
        arguments, names = fx.map_arg((node.args, node.kwargs), self.fixed.__getitem__)
        try:
            result = target(*arguments, **names)
        except (RuntimeError, TypeError) as failure:
            raise no_kernel(node, "cannot be computed beforehand") from failure
        return _on_host(result) if isinstance(result, torch.Tensor) else result

    def spread(self, node: fx.Node, operand: Any) -> str:
        """Returns an operand's vector, the same for each row; LoweringError if rows differ."""
        value = self.fixed.get(operand) if isinstance(operand, fx.Node) else operand
        if value is None:
            raise no_kernel(node, "has an operand that is not constant")
        shape = node.meta["val"].shape
        by_row = torch.as_tensor(value).float().expand(shape).reshape(self.rows, -1)
        if not torch.equal(by_row.nan_to_num(), by_row[:1].expand_as(by_row).nan_to_num()):
            raise no_kernel(node, "has an operand that differs from row to row")
        return self.vector(f"{node.name}.{operand}", by_row[0])


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_neg()
    return as_cpu(tensor) if tensor.device.type == "npu" else tensor

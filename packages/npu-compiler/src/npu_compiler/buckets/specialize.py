"""Specialization: rewrites a graph with dynamic sizes for the sizes of one bucket.

The new graph computes on padded tensors. Rules (npu_compiler.buckets.rules) track the true
positions of each call, and mask padding that would reach them. Sizes without such a proof are
refused. So all true values are right, and only these are returned.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from npu_compiler.buckets.call import Call, CannotPad, PaddedSize, Writer
from npu_compiler.buckets.rules import rule_of
from npu_compiler.buckets.sizes import (
    Dim,
    Dims,
    Expr,
    Factor,
    evaluate,
    expression,
    is_padded,
    product,
    whole,
)
from npu_compiler.graph.nodes import axis_order, is_effectful, is_mutation, is_symbolic, op_name
from npu_compiler.lowering.index_bounds import unproven_calls

__all__ = ["StaticGraph", "specialize"]


@dataclass(frozen=True)
class StaticGraph:
    """A graph for one bucket."""

    # The graph; the true sizes that its masks read follow its original inputs.
    module: fx.GraphModule
    counts: tuple[Expr, ...]  # these sizes
    inputs: Mapping[int, Dims]  # position -> dims of an input to pad
    # Per output its dims; a number or expression if the output is a size, None if it is an
    # unchanged input.
    outputs: tuple[Any, ...]
    returned: Mapping[int, int]  # output -> the input that it equals


def specialize(
    graph_module: fx.GraphModule,
    *,
    exact: Mapping[sympy.Symbol, int],
    padded: Mapping[sympy.Symbol, int],
    device: torch.device,
    check_indices: bool = True,
) -> StaticGraph:
    """Writes a graph of functional aten calls with fixed sizes, exact or padded ones.

    With `check_indices`, an index beyond a true size stays out of range. Raises CannotPad with the
    sizes that must be exact.
    """
    made = _Specializer(graph_module, exact, padded, device, check_indices=check_indices)
    return made.write()


class _Specializer:
    """Walks over the graph in order."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        exact: Mapping[sympy.Symbol, int],
        padded: Mapping[sympy.Symbol, int],
        device: torch.device,
        *,
        check_indices: bool,
    ) -> None:
        self._source = graph_module
        self._exact = exact
        self._padded = padded
        self._all = {**exact, **padded}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._writer = Writer(device, self._mode)
        self._made: dict[fx.Node, Any] = {}
        self._inputs: dict[int, Dims] = {}
        self._root = torch.nn.Module()
        self._unproven = unproven_calls(graph_module.graph) if check_indices else frozenset()

    def write(self) -> StaticGraph:
        placeholders = [n for n in self._source.graph.nodes if n.op == "placeholder"]
        for position, node in enumerate(placeholders):
            self._made[node] = self._placeholder(node, position)
        for node in self._source.graph.nodes:
            if node.op == "get_attr":
                self._made[node] = self._attribute(node)
            elif node.op == "call_function":
                self._made[node] = self._call(node)
        output = next(n for n in self._source.graph.nodes if n.op == "output")
        leaves, spec = pytree.tree_flatten(output.args[0])
        dims = tuple(self._output(leaf) for leaf in leaves)
        results = [self._made[x] if isinstance(x, fx.Node) else x for x in leaves]
        results = [int(x) if isinstance(x, PaddedSize) else x for x in results]
        self._writer.graph.output(pytree.tree_unflatten(results, spec))
        position_of = {node: position for position, node in enumerate(placeholders)}
        return StaticGraph(
            module=fx.GraphModule(self._root, self._writer.graph),
            counts=tuple(self._writer.counts),
            inputs=self._inputs,
            outputs=dims,
            returned={
                index: position_of[leaf]
                for index, leaf in enumerate(leaves)
                if isinstance(leaf, fx.Node) and leaf in position_of
            },
        )

    def _true(self, size: Any) -> Expr:
        return evaluate(expression(size), self._exact)

    def _dim(self, size: Any) -> Dim:
        """Returns a size as one factor with its true values first."""
        true = self._true(size)
        number = self._number(true)
        return whole(number) if isinstance(true, int) else (Factor(true, number),)

    def _number(self, true: Expr) -> int:
        found = evaluate(true, self._all)
        if not isinstance(found, int):
            raise CannotPad("a size that is not a number", self._padded)
        return found

    def _sized(self, value: Any) -> Any:
        """Returns a symbolic number of the graph, plain or marked as padded."""
        if isinstance(value, (int, float, bool)):
            return value
        if not isinstance(value, torch.SymInt):
            expr = value.node.expr
            if set(expr.free_symbols) & set(self._padded):
                raise CannotPad("a number that is computed from sizes", expr.free_symbols)
            found = expr.xreplace({k: sympy.Integer(v) for k, v in self._exact.items()})
            return bool(found) if isinstance(value, torch.SymBool) else float(found)
        true = self._true(value)
        return true if isinstance(true, int) else PaddedSize.of(self._number(true), true)

    def _placeholder(self, node: fx.Node, position: int) -> Any:
        value = node.meta.get("val")
        made = self._writer.graph.placeholder(node.name)
        made.meta = {key: kept for key, kept in node.meta.items() if key != "tensor_meta"}
        if not isinstance(value, torch.Tensor):
            number = self._sized(value) if isinstance(value, torch.SymInt) else value
            made.meta["val"] = int(number) if isinstance(number, int) else number
            return number if isinstance(value, torch.SymInt) else made
        shape: tuple[Any, ...] = tuple(value.shape)
        dims = tuple(self._dim(size) for size in shape)
        made.meta["val"] = self._fake_input(value, any(map(is_padded, dims)))
        self._writer.dims[made] = dims
        if any(map(is_padded, dims)):
            self._inputs[position] = dims
            self._writer.pads[made] = (0, 0)
        return made

    def _fake_input(self, value: torch.Tensor, is_copy: bool) -> torch.Tensor:
        sizes = [self._number(self._true(size)) for size in value.shape]
        strides = [evaluate(self._true(stride), self._all) for stride in value.stride()]
        # The strides of a part of a larger tensor may be sizes that no input has.
        is_dense = is_copy or not all(isinstance(stride, int) for stride in strides)
        with self._mode:
            if is_dense:
                order = axis_order(value) or tuple(range(value.dim()))
                made = torch.empty(
                    [sizes[axis] for axis in order], dtype=value.dtype, device=value.device
                )
                return made.permute([order.index(axis) for axis in range(len(order))])
            return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)

    def _attribute(self, node: fx.Node) -> fx.Node:
        assert isinstance(node.target, str)
        held = operator.attrgetter(node.target)(self._source)
        name = node.target.replace(".", "_")
        setattr(self._root, name, held)
        made = self._writer.graph.get_attr(name)
        with self._mode:
            fake = self._mode.from_tensor(held)
        made.meta = {**node.meta, "val": fake}
        self._writer.dims[made] = tuple(whole(size) for size in fake.shape)
        return made

    def _call(self, node: fx.Node) -> Any:
        if is_symbolic(node):
            return self._sized(node.meta["val"])
        if node.target is operator.getitem:
            return self._item(node)
        if (is_mutation(node) or is_effectful(node)) and self._padded:
            raise CannotPad(f"{op_name(node.target)} has an effect", self._padded)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: self._made[source])
        self._writer.stand_for(node)
        touched = [
            dim for source in _tensors(args, kwargs) for dim in self._writer.dims.get(source, ())
        ]
        sizes = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, PaddedSize)]
        symbols = {
            symbol
            for true in (*(f.true for dim in touched for f in dim), *(s.true for s in sizes))
            if not isinstance(true, int)
            for symbol in true.free_symbols
        }
        if not symbols:
            made = self._writer.call(node.target, *args, **kwargs)
            self._note_whole(made)
            return made
        try:
            made = self._padded_call(node, args, kwargs)
        except CannotPad as refusal:
            raise CannotPad(
                f"{node.name} ({op_name(node.target)}): {refusal.reason}",
                refusal.symbols or symbols,
            ) from refusal
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
            # A size that the padded call refuses, such as one beyond a table's end.
            reason = f"{node.name} ({op_name(node.target)}): {' '.join(str(error).split())[:160]}"
            raise CannotPad(reason, symbols) from error
        return made

    def _note_whole(self, made: fx.Node) -> None:
        value = made.meta["val"]
        if isinstance(value, torch.Tensor):
            self._writer.dims[made] = tuple(whole(size) for size in value.shape)

    def _item(self, node: fx.Node) -> Any:
        source, index = self._made[node.args[0]], node.args[1]  # type: ignore[index]
        self._writer.stand_for(node)
        made = self._writer.call(operator.getitem, source, index)
        dims: Any = self._writer.dims.get(source)
        if dims is None:
            self._note_whole(made)
            return made
        self._writer.dims[made] = dims[index]
        self._check(node, made, dims[index])
        return made

    def _padded_call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = rule_of(node.target)
        if rule is None:
            raise CannotPad("the position of its padding is unknown", ())
        shapes = pytree.tree_map_only(
            torch.Tensor,
            lambda meta: tuple(self._dim(size) for size in meta.shape),
            node.meta["val"],
        )
        is_unproven = node in self._unproven
        call = Call(self._writer, node.target, args, kwargs, shapes, checks_indices=is_unproven)
        made, dims = rule.apply(call)
        self._writer.dims[made] = dims
        if isinstance(made.meta["val"], torch.Tensor):
            self._check(node, made, dims)
        return made

    def _check(self, node: fx.Node, made: fx.Node, dims: Dims) -> None:
        """Checks that factors match the graph's sizes, true and padded."""
        true_shape: tuple[Any, ...] = tuple(node.meta["val"].shape)
        found = [product(dim) for dim in dims]
        expected = [
            (self._true(size), padded)
            for size, padded in zip(true_shape, made.meta["val"].shape, strict=True)
        ]
        if len(found) != len(expected) or not all(
            sympy.expand(a[0] - b[0]) == 0 and a[1] == b[1]
            for a, b in zip(found, expected, strict=True)
        ):
            raise self._writer.refuse(f"sizes {expected} were taken for {found}", *dims)

    def _output(self, leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return None
        made = self._made[leaf]
        if isinstance(made, PaddedSize):
            return made.true
        return self._writer.dims.get(made) if isinstance(made, fx.Node) else None


def _tensors(args: Any, kwargs: Any) -> list[fx.Node]:
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=lambda x: isinstance(x, fx.Node))
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]

"""Bucketed graphs: pad the inputs, run the specialized graph, and trim the results."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.buckets.call import CannotPad
from npu_compiler.buckets.sizes import Dims, Sizes, evaluate, expression, is_padded, product
from npu_compiler.buckets.specialize import StaticGraph, specialize
from npu_compiler.errors import IndexRangeError
from npu_compiler.graph.nodes import (
    axis_order,
    inverse_order,
    is_dense,
    starts_without_gaps,
    view_chain,
)

__all__ = ["BucketedGraph", "OutputViews"]

# AOTAutograd applies such an output's strides and offset to the memory of its base. A padded result
# has different ones.


class OutputViews:
    """The views among a graph's outputs; `module` returns their bases instead."""

    def __init__(self, graph_module: fx.GraphModule, known: Set[sympy.Symbol]) -> None:
        """Searches a functional graph with fake values; sizes in `known` are known at each call."""
        output = next(node for node in graph_module.graph.nodes if node.op == "output")
        leaves, spec = pytree.tree_flatten(output.args[0])
        chains = {
            index: view_chain(leaf)
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, fx.Node)
        }
        roots = Counter(chain[-1] for chain in chains.values())
        self._calls: dict[int, list[fx.Node]] = {}
        for index, (*views, root) in chains.items():
            # A base that is returned once shares memory with no other output.
            is_shared = root.op == "placeholder" or roots[root] > 1
            is_outside = is_shared or (views and not starts_without_gaps(views[0]))
            if views and is_outside and all(_is_known(view, known) for view in views):
                self._calls[index] = views[::-1]
                leaves[index] = root
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        graph.graph_copy(graph_module.graph, copies)
        returned = [copies[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        graph.output(pytree.tree_unflatten(returned, spec))
        graph.eliminate_dead_code()
        self.module = fx.GraphModule(graph_module, graph)

    def take(self, index: int, result: Any, true: Mapping[sympy.Symbol, int]) -> Any:
        """Returns an output as a view of the base from `module`, for the sizes of the call."""
        for view in self._calls.get(index, ()):
            values: dict[Any, Any] = {
                node: evaluate(expression(node.meta["val"]), true)
                for node in view.all_input_nodes
                if node is not view.args[0]
            }
            values[view.args[0]] = result
            args, kwargs = fx.map_arg((view.args, view.kwargs), values.__getitem__)
            with torch.no_grad():
                result = view.target(*args, **kwargs)  # type: ignore[operator]
        return result


def _is_known(view: fx.Node, known: Set[sympy.Symbol]) -> bool:
    """Whether a view's arguments besides its base are sizes known at each call."""
    sizes = [node.meta.get("val") for node in view.all_input_nodes if node is not view.args[0]]
    return all(
        isinstance(size, (int, torch.SymInt))
        and (isinstance(size, int) or set(size.node.expr.free_symbols) <= known)
        for size in sizes
    )


# A size that cannot be padded gets one program per value, up to a bound.

_logger = logging.getLogger(__name__)

# Maximum number of programs for sizes that cannot be padded; calls with further sizes run eagerly.
_EXACT_PROGRAMS = 16

Compile = Callable[[fx.GraphModule], Callable[[list[Any]], Any]]


class BucketedGraph:
    """A graph as AOTAutograd calls it: with one list of inputs, returning a sequence of outputs."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        sizes: Sizes,
        *,
        is_padding: bool,
        kept: Sequence[int],
        buckets: Sequence[int] | None,
        compile_static: Compile,
        check_indices: bool = True,
    ) -> None:
        """Takes a graph; nothing is compiled before the first call.

        Args:
            graph_module: functional, with fake values in `meta["val"]`.
            sizes: its dynamic sizes.
            is_padding: whether sizes may be rounded up; otherwise each size gets a program.
            kept: positions of inputs that are passed on unchanged, such as weights.
            buckets: see npu_compiler.buckets.sizes.round_up.
            compile_static: compiles a static graph.
            check_indices: see npu_compiler.buckets.specialize.specialize.
        """
        self._boxed_call = True
        self._module = graph_module
        self._views = OutputViews(graph_module, set(sizes.symbols))
        self._sizes = sizes
        self._buckets = buckets
        self._compile = compile_static
        self._check_indices = check_indices
        self._lock = threading.Lock()
        self._exact = sizes.symbols_of(kept) if is_padding else set(sizes.symbols)
        self._programs: dict[tuple[int, ...], tuple[StaticGraph, Callable[..., Any]]] = {}
        self._exact_values: set[tuple[int, ...]] = set()
        self._is_warned = False
        tensors = (node.meta.get("val") for node in graph_module.graph.nodes)
        devices = {value.device for value in tensors if isinstance(value, torch.Tensor)}
        self._device = next((d for d in devices if d.type == "npu"), torch.device("cpu"))

    def __call__(self, inputs: list[Any]) -> Any:
        """Runs the graph on a list of inputs, which is emptied."""
        true = self._sizes.read(inputs)
        found = self._programs.get(self._key(true)) or self._make(true)
        given = list(inputs)
        inputs.clear()
        if found is None:
            with torch.no_grad():
                return self._module(*given)
        static, run = found
        try:
            return _call(static, run, given, true, self._device, self._views)
        except IndexRangeError as error:
            if static.inputs:  # the graph then writes to no input, and may run again
                self._tell_in_true_sizes(error, given)
            raise

    def _tell_in_true_sizes(self, error: IndexRangeError, inputs: list[Any]) -> None:
        """Raises an index error with torch's reason, because the program uses padded sizes."""
        try:
            with torch.no_grad():
                self._module(*inputs)
        except (IndexError, RuntimeError) as told:
            whose, reason = error.message.partition(" must be ")[0], str(told).splitlines()[0]
            raise IndexRangeError(
                f"{whose} must be within the size that it indexes, got: {reason.rstrip('.')}. "
                "Check the source of these integers.",
                code=error.code,
            ) from error

    def _key(self, true: Mapping[sympy.Symbol, int]) -> tuple[int, ...]:
        return tuple(
            size if symbol in self._exact else self._sizes.bucket(symbol, size, self._buckets)
            for symbol, size in true.items()
        )

    def _make(
        self, true: Mapping[sympy.Symbol, int]
    ) -> tuple[StaticGraph, Callable[..., Any]] | None:
        with self._lock:
            while True:
                key = self._key(true)
                if key in self._programs:
                    return self._programs[key]
                if not self._is_within_bound(true):
                    return None
                chosen = dict(zip(true, key, strict=True))
                try:
                    static = specialize(
                        self._views.module,
                        exact={s: size for s, size in chosen.items() if s in self._exact},
                        padded={s: size for s, size in chosen.items() if s not in self._exact},
                        device=self._device,
                        check_indices=self._check_indices,
                    )
                except CannotPad as refusal:
                    refused = (refusal.symbols or set(true)) & set(true)
                    fresh = refused - self._exact or set(true) - self._exact
                    if not fresh:
                        raise
                    self._exact |= fresh
                    names = ", ".join(sorted(str(symbol) for symbol in fresh))
                    _logger.info(
                        "sizes %s get a program per value and are not padded: %s",
                        names,
                        refusal.reason,
                    )
                    continue
                made = static, self._compile(static.module)
                self._programs[key] = made
                return made

    def _is_within_bound(self, true: Mapping[sympy.Symbol, int]) -> bool:
        values = tuple(size for symbol, size in true.items() if symbol in self._exact)
        if values in self._exact_values or not values:
            return True
        if len(self._exact_values) < _EXACT_PROGRAMS:
            self._exact_values.add(values)
            return True
        if not self._is_warned:
            self._is_warned = True
            _logger.warning(
                "%d programs were compiled for sizes that cannot be padded; calls with others "
                "run eagerly. The log at level INFO names the op that prevents it.",
                _EXACT_PROGRAMS,
            )
        return False


def _call(
    static: StaticGraph,
    run: Callable[..., Any],
    inputs: list[Any],
    true: Mapping[sympy.Symbol, int],
    device: torch.device,
    views: OutputViews,
) -> Any:
    arguments = list(inputs)
    for position, dims in static.inputs.items():
        arguments[position] = _pad(inputs[position], [product(dim)[1] for dim in dims])
    arguments += [
        torch.tensor([evaluate(count, true)], dtype=torch.int64).to(device)
        for count in static.counts
    ]
    leaves, spec = pytree.tree_flatten(run(arguments))
    results = [
        inputs[static.returned[index]]
        if index in static.returned
        else _true_result(leaf, static.outputs[index], true)
        for index, leaf in enumerate(leaves)
    ]
    taken = [views.take(index, result, true) for index, result in enumerate(results)]
    return pytree.tree_unflatten(taken, spec)


def _true_result(leaf: Any, dims: Any, true: Mapping[sympy.Symbol, int]) -> Any:
    if isinstance(leaf, torch.Tensor):
        found: Dims = dims
        return _trim(leaf, found, true)
    return leaf if dims is None else evaluate(dims, true)


def _pad(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Pads a tensor with zeros to these sizes; keeps its memory order."""
    if tuple(tensor.shape) == tuple(sizes):
        return tensor
    order = axis_order(tensor) or tuple(range(tensor.dim()))
    made = torch.zeros([sizes[a] for a in order], dtype=tensor.dtype, device=tensor.device)
    made = made.permute(inverse_order(order))
    part = made
    for axis, size in enumerate(tensor.shape):
        part = part.narrow(axis, 0, size)
    part.copy_(tensor.detach())
    return made


def _trim(tensor: torch.Tensor, dims: Dims, true: Mapping[sympy.Symbol, int]) -> torch.Tensor:
    """Returns the true values, by the factors of the dimensions and the sizes of the call."""
    if not any(map(is_padded, dims)):
        return tensor
    factors = [factor for dim in dims for factor in dim]
    sizes = [int(evaluate(factor.true, true)) for factor in factors]
    if all(factor.size == size for factor, size in zip(factors, sizes, strict=True)):
        return tensor
    joined = any(len(dim) > 1 and is_padded(dim) for dim in dims)
    part = tensor
    if joined:
        part = part.reshape([factor.size for factor in factors])
        for axis, size in enumerate(sizes):
            part = part.narrow(axis, 0, size)
        shape = []
        rest = list(sizes)
        for dim in dims:
            own, rest = rest[: len(dim)], rest[len(dim) :]
            total = 1
            for size in own:
                total *= size
            shape.append(total)
        return part.reshape(shape)
    for axis, dim in enumerate(dims):
        if is_padded(dim):
            part = part.narrow(axis, 0, int(evaluate(dim[0].true, true)))
    return part if is_dense(part) else part.clone()

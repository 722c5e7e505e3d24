"""Memory format of images in training graphs: `channels_last` from each convolution on.

The CPU plugin convolves in this format. Each image that a program returns in torch's own format
costs a transposition: 5 ms for 12 x 32 x 64 x 64 (two Zen 5 cores, 2026-11-28).
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any, cast

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree

from npu_compiler.graph.nodes import (
    add_call,
    axis_order,
    inverse_order,
    is_call,
    is_effectful,
    strides_agree,
)

__all__ = ["LEAST_CHANNELS", "VARYING_IMAGE", "spread_channels_last"]

aten = torch.ops.aten
LEAST_CHANNELS = 8  # fewer channels are slower in channels_last
# Mark of calls whose programs are slower than torch: the CPU plugin copies each image of varying
# sizes to other layouts, for which a net with a varying batch took 1.5 times eager's step.
VARYING_IMAGE = "npu_is_varying_image"
# Calls with results that depend on strides, and statistics of a batch: the CPU plugin would read
# saved convolutions twice in other formats (ResNet-50: 15 % more processor time).
_AGAINST = frozenset(
    {
        aten.var_mean.correction,
        aten.as_strided.default,
        aten.as_strided_copy.default,
        aten.as_strided_scatter.default,
        aten.resize.default,
        aten.sym_stride.int,
        aten.sym_storage_offset.default,
    }
)


def spread_channels_last(graph: fx.Graph) -> None:
    """Changes the strides of convolutions' results and of values computed from them.

    The graph's results keep their strides. So do arguments of random numbers, which are drawn in
    the order of memory, and of ops from other libraries.

    Args:
        graph: functional, with fake values in `meta["val"]`; nothing changes if a call depends on
            strides, or if a batch is normalized.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    images = {node for node in calls if is_call(node, aten.convolution.default) and _is_image(node)}
    if not images or any(node.target in _AGAINST for node in calls):
        return
    mode = detect_fake_mode([node.meta["val"] for node in images])
    with mode or contextlib.nullcontext(), enable_python_dispatcher():
        _Spreading(graph, images).run()


class _Spreading:
    def __init__(self, graph: fx.Graph, convolutions: set[fx.Node]) -> None:
        self._graph = graph
        self._convolutions = convolutions
        self._traced: dict[fx.Node, Any] = {}  # nodes with new strides -> their values before

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node in self._convolutions and node.args[0] not in self._traced:
                self._start(node)
            if any(source in self._traced for source in node.all_input_nodes):
                self._follow(node)

    def _start(self, node: fx.Node) -> None:
        """Copies the image of a convolution, once also for its gradient."""
        image = cast(fx.Node, node.args[0])
        copy = add_call(
            self._graph, node, aten.clone.default, (image,), origin=node,
            memory_format=torch.channels_last,
        )  # fmt: skip
        self._traced[copy] = image.meta["val"]
        for user in list(image.users):
            if is_call(user, aten.convolution.default, aten.convolution_backward.default):
                user.replace_input_with(image, copy)

    def _follow(self, node: fx.Node) -> None:
        """Computes the strides of a call with changed arguments, or restores the arguments."""
        is_free = getattr(node.target, "namespace", "") == "aten" and not is_effectful(node)
        if node.target is not operator.getitem and not is_free:
            self._restore_arguments(node)
            return
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
        target: Any = node.target
        try:
            self._set(node, target(*args, **kwargs))
        except (RuntimeError, ValueError):  # a view that needs the former strides
            self._restore_arguments(node)

    def _set(self, node: fx.Node, value: Any) -> None:
        before = node.meta["val"]
        pairs = zip(pytree.tree_leaves(value), pytree.tree_leaves(before), strict=True)
        tensors = [pair for pair in pairs if isinstance(pair[0], torch.Tensor)]
        changed = [new for new, old in tensors if not strides_agree(new, old)]
        if changed:
            self._traced[node], node.meta["val"] = before, value
            if any(isinstance(size, torch.SymInt) for image in changed for size in image.shape):
                node.meta[VARYING_IMAGE] = True

    def _restore_arguments(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if isinstance(self._traced.get(source), torch.Tensor):
                node.replace_input_with(source, self._restored(source, node))

    def _restored(self, source: fx.Node, before: fx.Node) -> fx.Node:
        """Adds a copy of a value with its former strides, without gaps."""

        def add(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
            return add_call(self._graph, before, target, args, origin=source, **kwargs)

        order = axis_order(self._traced[source])
        turned = source if order is None else add(aten.permute.default, source, order)
        copy = add(aten.clone.default, turned, memory_format=torch.contiguous_format)
        return copy if order is None else add(aten.permute.default, copy, inverse_order(order))


def _is_image(node: fx.Node) -> bool:
    value = node.meta["val"]
    return bool(value.dim() == 4 and value.shape[1] >= LEAST_CHANNELS)

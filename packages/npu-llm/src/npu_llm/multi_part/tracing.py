"""Parts of a model, such as its encoder, traced as graphs with dynamic shapes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from transformers.cache_utils import Cache, DynamicLayer

from npu_command.interpreter import collector_paused
from npu_llm.capture.functional import drop_grad_modes, make_functional
from npu_llm.capture.patches import record_modules
from npu_llm.capture.step import join_weights
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.errors import CaptureError
from npu_llm.older_transformers import as_in_newer
from npu_llm.precision import Precision

__all__ = [
    "TRACE_FAILURES",
    "Example",
    "Part",
    "TracedModel",
    "TracedPart",
    "cache_of",
    "tensors_of",
    "trace_part",
]

_aten = torch.ops.aten


def _bucketize(
    given: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """Implements torch.bucketize by counting the boundaries below each number."""
    each = given[..., None]
    below = boundaries <= each if right else boundaries < each
    return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


# Calls without a converter, which are decomposed.
_TAKEN_APART = {
    **{
        op: op.decompose
        for op in (_aten.argsort.default, _aten.conv2d.padding, _aten._convolution_mode.default)
    },
    _aten.bucketize.Tensor: _bucketize,
}

# Exceptions of models' code on shape-only tensors.
TRACE_FAILURES = (
    AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """An input to trace with.

    Attributes:
        tensor: a tensor of this dtype and shape; equal dynamic sizes are the same size.
        varying: the dynamic dimensions.
    """

    tensor: torch.Tensor
    varying: tuple[int, ...]


@dataclass(frozen=True)
class TracedPart:
    """A part of a model as a graph.

    Attributes:
        name: its name, such as "encoder".
        graph_module: its graph, without in-place writes.
        inputs: the names of its placeholders, in order.
        outputs: the names of its results, in order.
        is_exact: whether fractional constants select indices, which rounding to 16 bits would
            change.
    """

    name: str
    graph_module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_exact: bool = False


@dataclass(frozen=True)
class Part:
    """A traced part, and its conversion to a program.

    Attributes:
        traced: its graph.
        cache: names of its cache tensors, which are inputs and results of the graph. They become
            the state of a program with dynamic shapes.
        lower_static: lowers it with a cache of fixed size, given its precision and the weights'
            values, to an openvino.Model and facts for JSON. None for a part without a cache.
        is_compressed: whether its weights are quantized in an integer precision.
    """

    traced: TracedPart
    cache: tuple[str, ...] = ()
    lower_static: Callable[[Precision, StreamedWeights], tuple[Any, dict[str, Any]]] | None = None
    is_compressed: bool = True


@dataclass(frozen=True)
class TracedModel:
    """A model as a list of parts.

    Attributes:
        parts: its parts in execution order.
        about: facts of the model for JSON.
        static: facts for programs of fixed sizes; None for dynamic shapes.
        inputs: example inputs by name: two rows, the second padded if the model takes padding.
        ids: further tokens (2, tokens).
        run: runs the model on both; returns the logits.
        outer: parameters and buffers outside the parts, by name; None if they are not read.
    """

    parts: tuple[Part, ...]
    about: Mapping[str, Any]
    static: dict[str, Any] | None
    inputs: dict[str, torch.Tensor]
    ids: torch.Tensor
    run: Callable[[], torch.Tensor]
    outer: Mapping[str, torch.Tensor] | None = None


def cache_of(tensors: Sequence[torch.Tensor]) -> Cache:
    """Returns transformers' cache with a key and a value for each layer's past."""
    layers = []
    for key, value in zip(tensors[::2], tensors[1::2], strict=True):
        layer = DynamicLayer()
        layer.keys, layer.values = key, value
        layer.dtype, layer.device = key.dtype, key.device
        layer.is_initialized = True
        layers.append(layer)
    return Cache(layers=layers)


def tensors_of(cache: Any) -> list[Any]:
    """Returns the key and the value of each layer."""
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def trace_part(
    model: torch.nn.Module,
    name: str,
    run: Callable[[Mapping[str, torch.Tensor]], Sequence[torch.Tensor]],
    *,
    examples: Mapping[str, Example],
    outputs: Sequence[str],
    required: Sequence[str] = (),
) -> TracedPart:
    """Traces a part of a model.

    Args:
        model: a model of transformers, on cpu, in eval mode.
        name: name of the part, for messages.
        run: calls the model with tensors by name; returns the results.
        examples: example arguments. Inputs without effect on a result are removed.
        outputs: names of the results.
        required: inputs that are never removed.

    Raises:
        CaptureError: [capture-failed] if it cannot be traced, [fixed-size] if its code fixes a
            dynamic size.
    """
    names = tuple(examples)
    fake = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fake.cache_enabled = False  # caching calls with symbolic sizes costs more than it saves
    tensors = [_fake(fake, each, examples[each]) for each in names]

    def flat(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(run(dict(zip(names, given, strict=True))))

    with torch.no_grad(), warnings.catch_warnings(), collector_paused():
        warnings.simplefilter("ignore")  # tracing warns about code that runs repeatedly
        try:
            with as_in_newer(model), record_modules(model), _sizes_kept(model):
                graph_module = make_fx(
                    flat,
                    _TAKEN_APART,
                    tracing_mode="symbolic",
                    pre_dispatch=True,
                    _allow_non_fake_inputs=True,
                    record_stack_traces=True,
                )(*tensors)
        except TRACE_FAILURES as failure:
            lines = str(failure).strip().splitlines() or [type(failure).__name__]
            raise CaptureError(
                f"`{type(model).__name__}` must have a {name} that is traceable with dynamic "
                f"shapes, got: {lines[0].rstrip('.')}. Only models without such a condition are "
                "supported.",
                code="capture-failed",
            ) from failure
    _check_sizes(model, name, examples, tensors)
    drop_grad_modes(graph_module)
    join_weights(graph_module)
    has_fractions = _compute_ranges(graph_module)
    make_functional(graph_module)
    graph_module.graph.eliminate_dead_code()
    kept = _drop_unread(graph_module, names, required)
    return TracedPart(name, graph_module, kept, tuple(outputs), has_fractions)


def _fake(fake: FakeTensorMode, name: str, example: Example) -> torch.Tensor:
    sizes = [
        DimDynamic.DUCK if dim in example.varying else DimDynamic.STATIC
        for dim in range(example.tensor.dim())
    ]
    context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
    return fake.from_tensor(example.tensor, source=ConstantSource(name), symbolic_context=context)


@contextmanager
def _sizes_kept(model: torch.nn.Module) -> Iterator[None]:
    """Makes `int` in the model's own module keep symbolic sizes instead of fixing them.

    Models compute the frames left by their convolutions as int(a / b).
    """
    home: Any = sys.modules[type(model).__module__]
    home.int = _whole
    try:
        yield
    finally:
        del home.int


class _whole(int):
    def __new__(cls, value: Any = 0, *rest: Any) -> Any:
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return torch.sym_int(value)  # type: ignore[no-untyped-call]
        return int(value, *rest)


def _check_sizes(
    model: torch.nn.Module,
    part: str,
    examples: Mapping[str, Example],
    tensors: Sequence[torch.Tensor],
) -> None:
    for (name, example), tensor in zip(examples.items(), tensors, strict=True):
        for dim in example.varying:
            size = tensor.shape[dim]
            if isinstance(size, int) or size.node.maybe_as_int() is not None:
                raise CaptureError(
                    f"`{type(model).__name__}` must have a dynamic size {dim} of {name} in its "
                    f"{part}, got a model whose code fixes it at {size}. Such models are not "
                    "supported yet.",
                    code="fixed-size",
                )


def _compute_ranges(graph_module: fx.GraphModule) -> bool:
    """Replaces float ranges by torch's values; returns whether there are any.

    Adding up steps would give other end values, which are compared with such a range.
    """
    is_found = False
    for node in list(graph_module.graph.nodes):
        packet = getattr(node.target, "overloadpacket", None)
        if packet is not _aten.arange or not all(
            isinstance(one, (int, float)) for one in node.args
        ):
            continue
        if node.meta["val"].is_floating_point():
            is_found = True
            name = f"range_{node.name}"
            kept = {key: value for key, value in node.kwargs.items() if key != "device"}
            graph_module.register_buffer(name, node.target(*node.args, **kept), persistent=False)
            with graph_module.graph.inserting_before(node):
                constant = graph_module.graph.get_attr(name)
            constant.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(constant)
    return is_found


def _drop_unread(
    graph_module: fx.GraphModule, names: Sequence[str], required: Sequence[str]
) -> tuple[str, ...]:
    """Removes unused placeholders; returns the names of the others."""
    kept = []
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for name, node in zip(names, placeholders, strict=True):
        if node.users or name in required:
            kept.append(name)
        else:
            graph_module.graph.erase_node(node)
    graph_module.recompile()
    return tuple(kept)

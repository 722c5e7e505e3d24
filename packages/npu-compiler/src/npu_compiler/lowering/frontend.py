"""Conversion of calls without a converter by OpenVINO's PyTorch frontend, one by one.

Some of its conversions differ from torch. A conversion is used only if it reproduces eager results
on random inputs of the call's shapes and dtypes. Registered converters come first; see registry.py.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import openvino as ov
import torch
from openvino.frontend import (
    FrontEndManager,
    GeneralFailure,
    InitializationFailure,
    NotImplementedFailure,
    OpConversionFailure,
    OpValidationFailure,
)
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

import npu_runtime
from npu_compiler.lowering.context import Context, ov_type, static_shape
from npu_compiler.programs import compile_options, load_tolerant

__all__ = ["convert_by_frontend", "frontend_refusal"]

_PLAIN = (int, float, bool, str, type(None), torch.dtype)
# Largest accepted difference from eager, relative to the largest magnitude.
_ROUNDING = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_NOT_SAME = "OpenVINO's frontend gives other results than torch"
_NO_NAN = "OpenVINO's frontend drops NaN"
# The frontend's error classes have no common base; its decoder raises Python's.
_FAILURES = (
    GeneralFailure,
    InitializationFailure,
    NotImplementedFailure,
    OpConversionFailure,
    OpValidationFailure,
)
_lock = threading.Lock()
_verdicts: dict[tuple[Any, ...], str | None] = {}


def frontend_refusal(node: fx.Node, *, nan: str | None = "propagate") -> str | None:
    """Returns the reason why the frontend cannot convert a call, or None if it can.

    The first call for an op, shapes, dtypes and arguments converts, compiles and runs it.

    Args:
        node: a call of an overload without a converter; `meta["val"]` has fake values.
        nan: "fast" also accepts a conversion that drops NaN.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return "not an operator of torch"
    tensors: list[Any] = [source.meta.get("val") for source in node.all_input_nodes]
    results = _results(node)
    if not all(_is_plain(value) for value in (*tensors, *results)) or not results:
        return "dynamic shapes, or values that are not tensors"
    if not all(isinstance(leaf, (fx.Node, *_PLAIN)) for leaf in _leaves(node)):
        return "arguments that are neither tensors nor plain values"
    key = _key(node, tensors)
    with _lock:
        if key not in _verdicts:
            with unset_fake_temporarily(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _verdicts[key] = _try(node)
        verdict = _verdicts[key]
    return None if nan == "fast" and verdict == _NO_NAN else verdict


def convert_by_frontend(ctx: Context, node: fx.Node) -> Any:
    """Returns the outputs of a call that frontend_refusal accepts; otherwise raises Refused."""
    reason = frontend_refusal(node, nan=ctx.nan)
    if reason is not None:
        ctx.refuse(reason)
    model = _converted(node)
    values = [ctx.get(source) for source in node.all_input_nodes]
    outputs = _spliced(model, values)
    return outputs if isinstance(node.meta["val"], (tuple, list)) else outputs[0]


def _spliced(model: ov.Model, values: Sequence[ov.Output]) -> tuple[ov.Output, ...]:
    """Replaces a model's inputs by values; returns the values of its results."""
    pairs = list(zip(model.get_parameters(), values, strict=True))
    for parameter, value in pairs:
        for place in parameter.output(0).get_target_inputs():
            place.replace_source_output(value)
    return tuple(result.input_value(0) for result in model.get_results())


def _results(node: fx.Node) -> list[Any]:
    value = node.meta["val"]
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _leaves(node: fx.Node) -> list[Any]:
    leaves: list[Any] = pytree.tree_leaves((node.args, node.kwargs))
    return leaves


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and None not in static_shape(value)


def _key(node: fx.Node, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    order = {source: index for index, source in enumerate(node.all_input_nodes)}
    arguments = pytree.tree_map_only(fx.Node, lambda source: f"%{order[source]}", node.args)
    keywords = pytree.tree_map_only(fx.Node, lambda source: f"%{order[source]}", node.kwargs)
    kinds = tuple((static_shape(tensor), tensor.dtype) for tensor in tensors)
    return (node.target, repr((arguments, sorted(keywords.items()))), kinds)


def _try(node: fx.Node) -> str | None:
    """Converts a single call, runs it on random inputs, and compares."""
    try:
        model = _converted(node)
    except (*_FAILURES, RuntimeError, KeyError, TypeError, ValueError, IndexError, AttributeError):
        return "OpenVINO's frontend does not convert it"
    expected = [(str(ov_type(v.dtype)), list(static_shape(v))) for v in _results(node)]
    found = [
        (str(result.get_element_type()), [int(size) for size in result.shape])
        for result in model.outputs
        if not result.partial_shape.is_dynamic
    ]
    if found != expected:
        return f"OpenVINO's frontend gives {found}, torch {expected}"
    inputs = _sample(node)
    if inputs is None:
        return "torch rejects random values"
    precision = next((t.dtype for t in inputs if t.is_floating_point()), torch.float32)
    try:
        options = compile_options(precision)
        program = load_tolerant(model, name=str(node.target), options=options)
        results = program.run([tensor.contiguous() for tensor in inputs], output_device="cpu")
    except (npu_runtime.ProgramError, RuntimeError):
        return "the device refuses the frontend's conversion"
    reference = _eager(node, inputs)
    if not all(_is_same(a, b) for a, b in zip(results, reference, strict=True)):
        return _NOT_SAME
    for given in _with_nan(inputs):
        results = program.run([t.contiguous() for t in given], output_device="cpu")
        if any(_loses_nan(a, b) for a, b in zip(results, _eager(node, given), strict=True)):
            return _NO_NAN
    return None


def _with_nan(inputs: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yields inputs with NaN in the middle of one, then also with inf in the others."""
    real = [i for i, tensor in enumerate(inputs) if tensor.is_floating_point() and tensor.numel()]
    for index, other in itertools.product(real, (None, math.inf)):
        given = [*inputs]
        for place in real:
            middle = math.nan if place == index else other
            if middle is not None:
                given[place] = inputs[place].contiguous().clone()
                given[place].view(-1)[inputs[place].numel() // 2] = middle
        yield given


def _loses_nan(result: torch.Tensor, reference: torch.Tensor) -> bool:
    if not reference.is_floating_point():
        return not torch.equal(result, reference)
    return bool((reference.isnan() & ~result.isnan()).any())


def _converted(node: fx.Node) -> ov.Model:
    """Returns the call as a separate model, with one input per tensor argument, in order."""
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    graph = fx.Graph()
    copies = {source: graph.placeholder(f"x{i}") for i, source in enumerate(node.all_input_nodes)}
    for source, copy in copies.items():
        copy.meta["val"] = source.meta["val"]
    call = graph.node_copy(node, copies.__getitem__)
    outputs: list[fx.Node] = [call]
    if isinstance(node.meta["val"], (tuple, list)):
        outputs = []
        for index, value in enumerate(node.meta["val"]):
            part = graph.call_function(operator.getitem, (call, index))
            part.meta["val"] = value
            outputs.append(part)
    graph.output(tuple(outputs))
    module = fx.GraphModule(torch.nn.Module(), graph)
    values = [source.meta["val"] for source in copies]
    decoder = TorchFXPythonDecoder(
        module,
        module,
        input_shapes=[ov.PartialShape(list(static_shape(value))) for value in values],
        input_types=[value.dtype for value in values],
    )
    frontend = _frontend()
    return frontend.convert(frontend.load(decoder))


@functools.cache
def _frontend() -> Any:
    return FrontEndManager().load_by_framework("pytorch")


def _sample(node: fx.Node) -> list[torch.Tensor] | None:
    """Returns random inputs: numbers in (-0.9, 0.9), and indices 0 and 1, or only 0."""
    for top in (2, 1):
        generator = torch.Generator().manual_seed(0)
        inputs = [_random(source.meta["val"], top, generator) for source in node.all_input_nodes]
        try:
            results = _eager(node, inputs)
        except (RuntimeError, IndexError, ValueError, NotImplementedError):
            continue
        if all(bool(result.isfinite().any()) for result in results):
            return inputs
    return None


def _random(meta: torch.Tensor, top: int, generator: torch.Generator) -> torch.Tensor:
    shape = [size for size in static_shape(meta) if size is not None]
    if meta.dtype.is_floating_point:
        return (torch.rand(shape, generator=generator) * 1.8 - 0.9).to(meta.dtype)
    return torch.randint(0, top, shape, generator=generator).to(meta.dtype)


def _eager(node: fx.Node, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    given = dict(zip(node.all_input_nodes, inputs, strict=True))
    args, kwargs = pytree.tree_map_only(fx.Node, given.__getitem__, (node.args, node.kwargs))
    assert callable(node.target)
    value = node.target(*args, **kwargs)
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _is_same(result: torch.Tensor, reference: torch.Tensor) -> bool:
    if (result.dtype, result.shape) != (reference.dtype, reference.shape):
        return False
    if not reference.is_floating_point():
        return torch.equal(result, reference)
    scale = float(reference.double().nan_to_num(0, 0, 0).abs().max())
    room = _ROUNDING[reference.dtype] * max(scale, 1e-6)
    return torch.allclose(result.double(), reference.double(), 0.0, room, equal_nan=True)

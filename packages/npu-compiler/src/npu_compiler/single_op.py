"""Programs of single ops, for eager ops that npu_ops runs as a program.

npu_ops chooses the ops and signatures (npu_ops.variants) and finds this module through the entry
point group `npu_ops.program_builders`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import openvino as ov
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import npu_runtime
from npu_compiler.errors import LoweringError
from npu_compiler.graph.nodes import axis_order, inverse_order, is_dense, op_name
from npu_compiler.graph.op_forms import decompositions
from npu_compiler.lowering import find_converter, lower
from npu_compiler.lowering.capability import refusal
from npu_compiler.lowering.context import is_float, ov_type
from npu_compiler.options import CompilerConfig
from npu_compiler.passes.decompose import convolution_backward
from npu_compiler.programs import ProgramCache, compile_options, content_key, load_tolerant
from npu_compiler.verification.op_check import verified_op
from npu_ops.variants import OpCall, OpProgram, TensorSpec

__all__ = ["LoweredOp", "build_op_program", "lower_op"]

_PLAIN = CompilerConfig()

# The converter handles gradients between other calls, and leaves some to the host's kernel.
_TAKEN_APART = {torch.ops.aten.convolution_backward.default: convolution_backward}

# Results that only the gradient reads and that cost as much as the op itself.
_UNREAD = {"aten::_scaled_dot_product_flash_attention_for_cpu": (1,)}

# torch's kernels keep scores in float32 for every dtype; a program would keep them in bfloat16,
# where a score of 200 is off by 0.5, which changes the weights (measured: error of 0.2 of the
# largest value; torch's kernel 0.002).
_WIDE = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)


@dataclass(frozen=True)
class LoweredOp:
    """One call as a model, with the mapping from its ports to the op's arguments and results."""

    model: Any  # the OpenVINO model
    dtype: torch.dtype  # precision of the computation: the widest floating dtype of the tensors
    inputs: tuple[int, ...]  # see OpProgram, also for results and output_orders
    results: tuple[int, ...]
    output_orders: tuple[tuple[int, ...], ...]
    # Tensors that back the model's constants; keep them alive until it is compiled.
    keep_alive: tuple[torch.Tensor, ...]


def build_op_program(call: OpCall, *, device_index: int = 0) -> OpProgram:
    """Compiles one call of an op into a program for an npu device.

    Args:
        call: the op, with a TensorSpec for each tensor argument.
        device_index: of the npu device.

    Raises:
        npu_ops.errors.OperatorInputError: [op-arguments] if torch refuses the arguments.
        LoweringError: [no-converter] or [cannot-lower] if no program can compute the call,
            [wrong-result] if its program differs from torch.
        npu_runtime.ProgramError: the device refuses the model.
    """
    lowered = lower_op(call)
    device = npu_runtime.device_info(device_index).device
    options = compile_options(lowered.dtype, device=device)
    key = content_key({"call": str(call), "options": options}, device=device)

    def build(further: Mapping[str, str]) -> OpProgram:
        program = _load(call, lowered, key, {**options, **further}, device_index)
        return OpProgram(
            program=program._native,
            inputs=lowered.inputs,
            results=lowered.results,
            output_orders=lowered.output_orders,
        )

    return verified_op(call, build, dtype=lowered.dtype, key=key)


def lower_op(call: OpCall) -> LoweredOp:
    """Lowers one call of an op to a model; raises as build_op_program does."""
    call.results()
    if call.op in _WIDE and any(spec.dtype is torch.bfloat16 for spec in call.tensors):
        return _narrowed(call, lower_op(_widened(call)))
    graph_module, positions, empty = _trace(call)
    flat = _flat(graph_module.graph.output_node().args[0])
    _check(graph_module, flat)
    orders = {
        index: order
        for index, node in enumerate(flat)
        if isinstance(node, fx.Node) and (order := axis_order(node.meta["val"])) is not None
    }
    placeholders = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
    by_name = dict(zip(placeholders, positions, strict=True))
    specs = {name: call.arguments[position] for name, position in by_name.items()}
    dtype = _precision(call)
    lowered = lower(
        graph_module,
        input_orders={name: spec.order for name, spec in specs.items() if spec.order},
        output_orders=orders,
        name=call.op,
    )
    output_orders: list[tuple[int, ...]] = [() for _ in lowered.output_names]
    for index, order in orders.items():
        output = lowered.outputs[index]
        if output is not None:
            output_orders[output] = inverse_order(order)
    absent = dict.fromkeys(empty, OpProgram.EMPTY)
    return LoweredOp(
        model=lowered.model,
        dtype=dtype,
        inputs=tuple(by_name[name] for name in lowered.input_names),
        results=tuple(
            absent.get(index, OpProgram.UNDEFINED) if output is None else output
            for index, output in enumerate(lowered.outputs)
        ),
        output_orders=tuple(output_orders),
        keep_alive=lowered.keep_alive,
    )


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _widened(call: OpCall) -> OpCall:
    """Returns the call with float32 in place of bfloat16."""
    return replace(
        call,
        arguments=tuple(
            replace(value, dtype=torch.float32)
            if isinstance(value, TensorSpec) and value.dtype is torch.bfloat16
            else value
            for value in call.arguments
        ),
    )


def _narrowed(call: OpCall, wide: LoweredOp) -> LoweredOp:
    """Returns a widened call's model with the call's original dtypes at its ports."""
    ports = ov.preprocess.PrePostProcessor(wide.model)
    for index, position in enumerate(wide.inputs):
        ports.input(index).tensor().set_element_type(ov_type(call.arguments[position].dtype))
    for result, output in zip(_flat(call.results()), wide.results, strict=True):
        if output >= 0:
            ports.output(output).tensor().set_element_type(ov_type(result.dtype))
    return replace(wide, model=ports.build())


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    return {**decompositions(), **_TAKEN_APART}


def _trace(call: OpCall) -> tuple[fx.GraphModule, list[int], set[int]]:
    """Returns the call's graph, argument positions of placeholders, and empty results.

    An op with a converter stays whole; others go through torch's decompositions, or ours.
    """
    positions = [i for i, value in enumerate(call.arguments) if isinstance(value, TensorSpec)]
    with FakeTensorMode():
        fakes = [
            torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype)
            for spec in (call.arguments[position] for position in positions)
        ]
        try:
            overload = call.overload()
            if overload not in _TAKEN_APART and find_converter(overload) is not None:
                module, empty = _whole(call, positions, fakes)
                return module, positions, empty

            def run(*tensors: torch.Tensor) -> Any:
                return call.invoke(_filled(call, positions, tensors))

            graph_module = make_fx(run, decomposition_table=_decompositions())(*fakes)
        except (NotImplementedError, RuntimeError) as failure:
            # torch has no fake implementation, or its decomposition depends on values.
            reason = str(failure).splitlines()[0]
            raise LoweringError(
                f"Cannot lower {call.op}: {reason}. Let it run on the host.",
                "cannot-lower",
                reason=reason,
            ) from failure
    graph_module.graph.eliminate_dead_code()
    return graph_module, positions, set()


def _filled(call: OpCall, positions: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """Returns the arguments of a call with these values in place of the tensors."""
    arguments = list(call.arguments)
    for position, value in zip(positions, values, strict=True):
        arguments[position] = value
    return arguments


def _whole(
    call: OpCall, positions: Sequence[int], fakes: Sequence[torch.Tensor]
) -> tuple[fx.GraphModule, set[int]]:
    """Returns a graph of this one call, and its results that are empty tensors."""
    graph = fx.Graph()
    sources = []
    for index, fake in enumerate(fakes):
        node = graph.placeholder(f"arg{index}")
        node.meta["val"] = fake
        sources.append(node)
    positional, named = call.split(_filled(call, positions, sources))
    result = graph.call_function(call.overload(), tuple(positional), named)
    result.meta["val"] = call.invoke(_filled(call, positions, fakes))
    graph.output(_picked(graph, call, result))
    values = result.meta["val"]
    parts = [values] if isinstance(values, torch.Tensor) else list(values)
    empty = {
        index
        for index, value in enumerate(parts)
        if isinstance(value, torch.Tensor) and value.numel() == 0
    }
    return fx.GraphModule({}, graph), empty


def _picked(graph: fx.Graph, call: OpCall, result: fx.Node) -> Any:
    """Returns a call's results as a list, with None for those a program need not compute."""
    values = result.meta["val"]
    if isinstance(values, torch.Tensor):
        return result
    unread = _UNREAD.get(call.op, ()) if not call.needs_grad else ()
    picked: list[Any] = []
    for index, value in enumerate(values):
        if not isinstance(value, torch.Tensor) or value.numel() == 0 or index in unread:
            picked.append(None)
            continue
        pick = graph.call_function(operator.getitem, (result, index))
        pick.meta["val"] = value
        picked.append(pick)
    return tuple(picked)


def _check(graph_module: fx.GraphModule, results: Sequence[Any]) -> None:
    """Raises LoweringError for calls that a program would compute differently from torch."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        reason = refusal(node, _PLAIN)
        if reason is not None:
            code = "no-converter" if reason.startswith("no converter") else "cannot-lower"
            raise LoweringError(
                f"Cannot lower {op_name(node.target)}: {reason}. Let it run on the host.",
                code,
                node.name,
                reason,
            )
    for node in results:
        if not isinstance(node, fx.Node):
            continue
        if node.op == "placeholder" or not is_dense(node.meta["val"]):
            reason = "a result that shares memory or has gaps"
            raise LoweringError(
                f"Cannot lower {node.name}: {reason}. Let it run on the host.",
                "cannot-lower",
                node.name,
                reason,
            )


def _precision(call: OpCall) -> torch.dtype:
    """Returns the widest floating dtype of the tensors, the precision of the program."""
    found = {spec.dtype for spec in call.tensors if is_float(spec.dtype)}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        if dtype in found:
            return dtype
    reason = "no floating point tensor among the arguments"
    raise LoweringError(f"Cannot lower {call}: {reason}.", "cannot-lower", reason=reason)


def _load(
    call: OpCall, lowered: LoweredOp, key: str, options: Mapping[str, str], device_index: int
) -> npu_runtime.Program:
    if npu_runtime.device_info(device_index).device.startswith("CPU"):
        # The CPU plugin compiles as fast as it reads a blob.
        return load_tolerant(
            lowered.model, name=str(call), options=options, device_index=device_index
        )
    return ProgramCache().load(
        key, lambda: lowered.model, name=str(call), options=options, device_index=device_index
    )

"""ONNX files of the compiler's graphs, written by torch's exporter."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from npu_compiler.graph.nodes import op_name
from npu_compiler.target_compiler import GraphProgram
from npu_ops.fused import (
    addmm_relu,
    conv_bn_relu,
    fused_attention,
    linear_gelu,
    linear_relu,
    rms_norm,
    rotary_embedding,
    swiglu,
)
from npu_runtime.npu import as_cpu

__all__ = ["OPSET", "constant_results", "input_shape", "result_places", "write_onnx"]

OPSET = 18  # the newest that the toolkit reads without a Gelu op


def _attention(
    query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: Any, gqa: bool
) -> Any:
    return F.scaled_dot_product_attention(
        query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=gqa
    )


def _average(
    x: torch.Tensor, kernel: list[int], stride: Any = None, padding: Any = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: Any = None,
) -> torch.Tensor:  # fmt: skip
    """Returns means in windows; the toolkit counts cells beyond the input that ceil_mode adds."""
    if ceil_mode and count_include_pad:
        rows, columns = (*padding, padding[0])[:2]
        x = F.pad(x, (columns, columns, rows, rows)) if rows or columns else x
        padding, count_include_pad = 0, False
    return F.avg_pool2d(x, kernel, stride or None, padding, ceil_mode, count_include_pad, divisor)


_FORMULAS = {
    "aten.avg_pool2d.default": _average,
    "npu_compiler.attention.default": _attention,
    "npu.addmm_relu.default": addmm_relu.reference,
    "npu.conv_bn_relu.default": conv_bn_relu.reference,
    "npu.fused_attention.default": fused_attention.reference,
    "npu.linear_gelu.default": linear_gelu.reference,
    "npu.linear_relu.default": linear_relu.reference,
    "npu.rms_norm.default": rms_norm.reference,
    "npu.rotary_embedding.default": rotary_embedding.reference,
    "npu.swiglu.default": swiglu.reference,
}


class _Opened(fx.Interpreter):
    """Runs a graph with the formulas of npu_ops.fused in place of their ops, on the CPU."""

    def __init__(self, module: fx.GraphModule, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(module)
        self._tensors = tensors

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._tensors[target]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return super().call_function(_FORMULAS.get(op_name(target), target), args, kwargs)


class _Program(nn.Module):
    """A graph with its constants, and the tensors that it has itself, as buffers."""

    def __init__(self, program: GraphProgram) -> None:
        super().__init__()
        graph = program.module.graph
        self._graph = [program.module]  # not as a submodule, whose tensors would become parameters
        self._results = result_places(program)
        places = graph.find_nodes(op="placeholder")
        self._shapes = {node.name: node.meta["val"].shape for node in places}
        tensors = _tensors(program)
        self._buffer_names = {name: f"weight_{index}" for index, name in enumerate(tensors)}
        for name, tensor in tensors.items():
            self.register_buffer(self._buffer_names[name], tensor.detach())

    def forward(self, *inputs: torch.Tensor) -> Any:
        given = iter(inputs)
        tensors = {name: getattr(self, buffer) for name, buffer in self._buffer_names.items()}
        ordered = [
            tensors[name] if name in tensors else next(given).reshape(shape)
            for name, shape in self._shapes.items()
        ]
        results = _Opened(self._graph[0], tensors).run(*ordered)
        # Copies: torch's exporter fails where a result is a view of a buffer.
        places = [place for place in dict.fromkeys(self._results) if place >= 0]
        return tuple(results[place].clone() for place in places)


def result_places(program: GraphProgram) -> list[int]:
    """Returns, for each result of inputs, the first that is computed by the same call.

    The toolkit merges calls that are alike, and loses a result with each; a result of constants
    alone it loses, too, and its place is -1.
    """
    first: dict[str, int] = {}
    results: Any = program.module.graph.output_node().args[0]
    keys = [f"{node.target} {node.args} {node.kwargs}" for node in results]
    varying = _varying(program)
    return [
        first.setdefault(key, place) if node in varying else -1
        for place, (key, node) in enumerate(zip(keys, results, strict=True))
    ]


def input_shape(node: fx.Node) -> list[int]:
    """Returns the shape of an input of the file: the simulator takes no scalar."""
    return list(node.meta["val"].shape) or [1]


def constant_results(program: GraphProgram) -> dict[int, torch.Tensor]:
    """Returns place -> value of the results that no input changes."""
    results: Any = program.module.graph.output_node().args[0]
    varying = _varying(program)
    if varying.issuperset(results):
        return {}
    run = _Opened(program.module, _tensors(program))
    for node in program.module.graph.nodes:
        if node.op == "placeholder":
            run.env[node] = program.constants.get(node.name)
        elif node.op != "output" and node not in varying:
            run.env[node] = run.run_node(node)
    return {place: run.env[node] for place, node in enumerate(results) if node not in varying}


def _varying(program: GraphProgram) -> set[fx.Node]:
    """Returns the nodes that read an input, directly or through others."""
    varying = set(program.inputs)
    for node in program.module.graph.nodes:
        if varying.intersection(node.all_input_nodes):
            varying.add(node)
    return varying


def _tensors(program: GraphProgram) -> dict[str, torch.Tensor]:
    """Returns constants, and the tensors that the graph has itself, on the CPU."""
    graph = program.module.graph
    tensors = {
        str(node.target): getattr(program.module, str(node.target))
        for node in graph.find_nodes(op="get_attr")
    } | dict(program.constants)
    return {
        name: as_cpu(tensor) if tensor.device.type == "npu" else tensor
        for name, tensor in tensors.items()
    }


def write_onnx(program: GraphProgram, path: Path) -> None:
    """Writes a graph; inputs and results keep their order. Raises the errors of torch's exporter.

    In a thread, since the exporter fails under the modes of a caller that is being traced.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_write, program, path).result()


def _write(program: GraphProgram, path: Path) -> None:
    from torch.onnx._internal.exporter import _core  # late: it imports onnxscript, in a second

    examples = tuple(
        torch.zeros(input_shape(node), dtype=node.meta["val"].dtype) for node in program.inputs
    )
    with _quiet(), torch.no_grad():
        exported = torch.export.export(_Program(program), examples, strict=False)
        # Not torch.onnx.export, which makes the registry at each call, in two seconds.
        made = _core.export(exported, registry=_registry(), opset_version=OPSET, verbose=False)
        made.save(path)


@functools.cache
def _registry() -> Any:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return ONNXRegistry.from_torchlib(opset_version=OPSET)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the exporter's log about libraries that are not installed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    former = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, former, strict=True):
            logger.setLevel(level)

"""Half-precision checks of exported folders. The OpenVINO model becomes a graph of calls."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx, nn

from npu_compiler.exported.manifest import Manifest, read_manifest
from npu_compiler.graph.kept_origins import kept_origins
from npu_compiler.half_precision import HalfPrecision, check_graph, deadline_of
from npu_compiler.openvino_core import openvino_core

__all__ = ["check_half_folder"]

# The value of dynamic sizes, if their bounds allow it.
_SIZE = 8


def check_half_folder(
    path: str | os.PathLike[str], *, budget_s: float | None = None
) -> HalfPrecision:
    """Checks a folder that npu_compiler.export wrote, as check_half does a module.

    The folder has no example inputs. Floats are drawn from a normal distribution, and indices
    within their bounds.

    Raises:
        ExportError: it is not an exported folder, or is damaged; [half-dtype] for floats that are
            not float32.
    """
    deadline = deadline_of(budget_s)
    folder = Path(path)
    manifest = read_manifest(folder)
    model = openvino_core().read_model(next(folder.glob("*.xml")))
    inputs = _drawn(manifest)
    module, values = _as_graph(model, inputs)
    return check_graph(manifest.name, module, values, deadline=deadline)


def _drawn(manifest: Manifest) -> list[torch.Tensor]:
    """Returns a tensor for each input of the model, in order."""
    generator = torch.Generator().manual_seed(0)
    bounds = {check["port"]: check.get("size") for check in manifest.index_checks}
    ports = {one.port: one for one in manifest.inputs if one.port is not None}
    drawn = []
    for _, one in sorted(ports.items()):
        sizes = [_size(size, manifest) for size in one.shape]
        dtype = getattr(torch, one.dtype)
        if dtype.is_floating_point:
            drawn.append(torch.randn(sizes, generator=generator).to(dtype))
        else:
            most = bounds.get(one.port) or 2
            drawn.append(torch.randint(0, most, sizes, generator=generator).to(dtype))
    return drawn


def _size(size: int | str | None, manifest: Manifest) -> int:
    if isinstance(size, int):
        return size
    least, most = manifest.sizes.get(size or "", (1, None))
    return max(least, _SIZE if most is None else min(most, _SIZE))


def _as_graph(
    model: ov.Model, inputs: Sequence[torch.Tensor]
) -> tuple[fx.GraphModule, dict[str, Any]]:
    """Splits a model into calls of its operations; also returns the values of placeholders."""
    origins = kept_origins(model)
    graph = fx.Graph()
    made: dict[tuple[str, int], fx.Node] = {}
    values: dict[str, Any] = {}
    parameters = {one.get_name(): place for place, one in enumerate(model.get_parameters())}
    results: list[fx.Node] = []
    for node in model.get_ordered_ops():
        kind, key = node.get_type_name(), node.get_name()
        if kind == "Result":
            results.append(made[_key(node.input_value(0))])
            continue
        if kind == "Parameter":
            made[key, 0] = one = graph.placeholder(f"input_{parameters[key]}")
            values[one.name] = inputs[parameters[key]]
            continue
        if kind == "Constant":
            if node.get_element_type() in (ov.Type.f32, ov.Type.f16):
                made[key, 0] = one = graph.placeholder(f"constant_{len(made)}")
                data = np.array(node.get_data(), dtype=np.float32)
                values[one.name] = torch.from_numpy(data)
            continue
        taken = tuple(made[_key(one)] for one in node.input_values() if _key(one) in made)
        name = str(node.get_friendly_name()).partition("/")[0]
        call = graph.create_node("call_function", _operation(node, made), taken, name=name)
        module, line = origins.get(name, ("", ""))
        if module:
            call.meta["nn_module_stack"] = {"": (module, "")}
        if line:
            file, _, number = line.rpartition(":")
            call.meta["stack_trace"] = f'File "{file}", line {number}, in forward'
        if node.get_output_size() == 1:
            made[key, 0] = call
            continue
        for index in range(node.get_output_size()):
            made[key, index] = graph.call_function(operator.getitem, (call, index))
    graph.output(tuple(results))
    return fx.GraphModule(nn.Module(), graph), values


def _key(output: ov.Output) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _operation(node: ov.Node, made: Container[tuple[str, int]]) -> Callable[..., Any]:
    """Cuts a node out of its model; returns a function that computes it on float32 tensors.

    Integer constants stay constants, and each value in `made` becomes an argument.
    """
    parameters = []
    for position, source in enumerate(node.input_values()):
        if _key(source) in made:
            given = ops.parameter(source.get_partial_shape(), source.get_element_type())
            node.input(position).replace_source_output(given.output(0))
            parameters.append(given)
    types = [given.get_element_type().to_dtype() for given in parameters]
    model = ov.Model([ops.result(output) for output in node.outputs()], parameters, "call")
    compiled: list[ov.CompiledModel] = []

    def compute(*tensors: torch.Tensor) -> Any:
        if not compiled:
            options = {"INFERENCE_PRECISION_HINT": "f32"}
            compiled.append(openvino_core().compile_model(model, "CPU", options))
        given = [x.numpy().astype(to) for x, to in zip(tensors, types, strict=True)]
        found = compiled[0].create_infer_request().infer(given)
        results = [torch.from_numpy(np.array(found[place])) for place in range(len(model.outputs))]
        wide = [x.float() if x.dtype is torch.float16 else x for x in results]
        return wide[0] if len(wide) == 1 else tuple(wide)

    compute.__name__ = node.get_type_name()
    compute.__module__ = ""
    return compute

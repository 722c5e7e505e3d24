"""Measures the overhead of a call of a compiled model: host time from tensors to tensors.

Run from the root of the repository, on an idle machine:

    python packages/npu-compiler/benchmarks/overhead.py

The model is a chain of small linear layers with 2 to 200 weights, so that inference is short.
"bare" is OpenVINO's request for the same graph from Python, with bound tensors. "graph" is the
backend's callable for dynamo, which checks weights, binds inputs and creates results. "eager" is
the module without compilation, and "model" is
the call of the compiled module. "dynamo" is the same call with a backend that returns a ready
result: the cost of torch's guards and of the code before a graph, which npu shortens. Calls
alternate in blocks; a figure is the median of the blocks, in microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from torch import nn

import npu_compiler
from npu_compiler.torch_compile.backend import npu


def chain(weights: int, width: int) -> nn.Module:
    """Returns a model with a number of weights, in layers of a weight and a bias each."""
    layers = [nn.Linear(width, width) for _ in range(weights // 2)]
    return nn.Sequential(*layers).eval()


def bare_request(model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """Returns OpenVINO's inference of the same graph, with tensors bound only once."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        npu_compiler.export(model, (x,), folder)
        core = ov.Core()
        compiled = core.compile_model(
            core.read_model(folder / "model.xml"),
            "CPU",
            {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"},
        )
    request = compiled.create_infer_request()
    request.set_input_tensor(0, ov.Tensor(x.numpy(), shared_memory=True))
    return request.infer


def calls_for(weights: int, rows: int, width: int) -> dict[str, Callable[[], Any]]:
    """Returns the five ways to run one chain, ready to call."""
    torch._dynamo.reset()
    model, x = chain(weights, width), torch.randn(rows, width)
    captured: list[Callable[[], Any]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled = npu(graph, inputs)
        captured.append(partial(compiled, *inputs))
        return compiled

    torch.compile(model, backend=backend)(x)
    whole = torch.compile(model, backend="npu")
    ready = whole(x)
    guarded = torch.compile(model, backend=lambda *_: lambda *_given: (ready,))
    guarded(x)
    return {
        "eager": partial(model, x),
        "bare": bare_request(model, x),
        "graph": captured[0],
        "model": partial(whole, x),
        "dynamo": partial(guarded, x),
    }


def measure(calls: dict[str, Callable[[], Any]], blocks: int, per_block: int) -> dict[str, float]:
    """Returns the median time of a call in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks):
        for name, call in calls.items():
            for _ in range(20):
                call()
            started = time.perf_counter()
            for _ in range(per_block):
                call()
            times[name].append((time.perf_counter() - started) / per_block * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", default="2,20,200")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=25)
    parser.add_argument("--calls", type=int, default=200)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, OpenVINO {ov.__version__}, us per call")
    print("weights   eager    bare   graph  over bare   model  dynamo")
    with torch.no_grad():
        for weights in map(int, arguments.weights.split(",")):
            found = measure(
                calls_for(weights, arguments.rows, arguments.width),
                arguments.blocks,
                arguments.calls,
            )
            print(
                f"{weights:7} {found['eager']:7.1f} {found['bare']:7.1f} {found['graph']:7.1f} "
                f"{found['graph'] - found['bare']:10.1f} {found['model']:7.1f} "
                f"{found['dynamo']:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Measures a two-layer MLP from tensor to tensor: eager, Inductor, OpenVINO and kernel programs.

Run from the root of the repository, on an idle machine:

    python packages/npu-compiler/benchmarks/small_graphs.py

"guards" is the same call with a backend that returns a ready result: dynamo's cost for every
backend. "chosen" is the compiler's default target; npu_compiler.graph_compiler.targets has bounds
from this table. Calls alternate in blocks; a figure is the minimum of the blocks, in microseconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
import torch
from torch import nn

from npu_compiler.graph_compiler.records import collecting


def mlp(width: int) -> nn.Module:
    """The model: width to width, ReLU, width to width."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).eval()


def calls_for(width: int, rows: int) -> tuple[dict[str, Callable[[], Any]], str]:
    """Returns the ways to run one model, ready to call, and the compiler's choice."""
    torch._dynamo.reset()
    x, calls = torch.randn(rows, width), {}
    calls["eager"] = partial(mlp(width), x)
    ready = torch.randn(rows, width)
    for name, backend, options in (
        ("guards", lambda *_: lambda *_given: (ready,), None),
        ("inductor", "inductor", None),
        ("openvino", "npu", {"target": "openvino"}),
        ("kernels", "npu", {"target": "kernels"}),
    ):
        compiled = torch.compile(mlp(width), backend=backend, options=options, dynamic=False)
        compiled(x)
        calls[name] = partial(compiled, x)
    with collecting() as records:
        torch.compile(mlp(width), backend="npu")(x)
    return calls, records[0].programs[0].target


def measure(calls: dict[str, Callable[[], Any]], blocks: int, per_block: int) -> dict[str, float]:
    """Returns the least time of a call in microseconds."""
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(blocks):
        for name, call in calls.items():
            call()
            started = time.perf_counter()
            for _ in range(per_block):
                call()
            passed = (time.perf_counter() - started) / per_block * 1e6
            times[name] = min(times[name], passed)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", default="16,64,128,256,384,512")
    parser.add_argument("--rows", default="1,2,8,16")
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--calls", type=int, default=50)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, OpenVINO {ov.__version__}, us per call")
    print("width  rows   eager  guards  inductor  openvino  kernels  chosen")
    with torch.no_grad():
        for width in map(int, arguments.widths.split(",")):
            for rows in map(int, arguments.rows.split(",")):
                calls, chosen = calls_for(width, rows)
                found = measure(calls, arguments.blocks, arguments.calls)
                print(
                    f"{width:5} {rows:5} {found['eager']:7.1f} {found['guards']:7.1f} "
                    f"{found['inductor']:9.1f} {found['openvino']:9.1f} {found['kernels']:8.1f}  "
                    f"{chosen}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""Writes a trace of a given size in the shape of a training run, to measure the page.

Per step: a module around modules around ops four deep, a backward thread with an arrow from each
forward op, a program with layers and their details, the arrow to it, fallbacks, the memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Piece, Sample, Slice, Track
from npu_profiler.trace_format.trace_file import (
    TraceFile,
    format_piece,
    format_tracks,
    new_flow_ids,
)

PROCESS = "python train.py"
MAIN = Track(100, 100, "main thread", PROCESS, 10)
BACKWARD = Track(100, 101, "backward", PROCESS, 11)
PHASES = Track(100, 1 << 22, "compile phases", PROCESS, 3)
IMPORTS = Track(100, (1 << 22) + 1, "imports", PROCESS, 2)
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0", 1, 1)
TRACKS = (IMPORTS, PHASES, MAIN, BACKWARD, PROGRAMS)
OPS = ("linear", "addmm", "mul", "add", "softmax", "native_layer_norm", "gelu", "view", "copy_")
START_NS = 6_000_000_000  # of the first step: imports and compiling come before
US = 1000


def write_large_trace(path: Path, size_bytes: int) -> int:
    """Writes the trace; returns how many events it has."""
    random.seed(5)
    ids, count = new_flow_ids(), 0
    file = TraceFile(path, start_ns=0, first=format_tracks(TRACKS))
    for piece in pieces():
        count += piece.event_count
        file.write(format_piece(piece, 0, flow_ids=ids))
        if path.stat().st_size > size_bytes:
            break
    file.finish({"npu-profiler": "0.1.0"})
    return count


def pieces() -> Iterator[Piece]:
    """The events before the first step, then each step."""
    yield Piece(
        [
            Slice(IMPORTS, "import", "torch", 0, 2_000_000 * US),
            Slice(IMPORTS, "import", "transformers", 2_000_000 * US, 1_500_000 * US),
            Slice(PHASES, "compile", "graph", 4_000_000 * US, 1_800_000 * US),
        ]
    )
    now = START_NS
    while True:
        piece, now = step(now)
        yield piece


def step(now: int) -> tuple[Piece, int]:
    """One step from a moment on, and when it ends."""
    slices: list[Slice] = []
    flows: list[Flow] = []
    begin = now
    for block in range(24):
        block_begin = now
        for _ in range(12):
            now, op = ops(slices, MAIN, now, 4)
            backward = op.start_ns + 40_000 * US
            flows.append(
                Flow("fwdbwd", "forward to backward", end(op), FlowEnd(BACKWARD, backward))
            )
            slices.append(Slice(BACKWARD, "cpu_op", f"{op.name}Backward0", backward, 9 * US))
        path = f"model.layers.{block}"
        slices.append(
            Slice(MAIN, "module", path, block_begin, now - block_begin, {"class": "Block"})
        )
    launch = Slice(MAIN, "cpu_op", "npu::program head", now, 900 * US)
    slices += [launch, *program(now + 5 * US)]
    flows.append(Flow("launch", "launch", end(launch), FlowEnd(PROGRAMS, now + 5 * US)))
    now += 950 * US
    slices.append(Slice(MAIN, "module", "model", begin, now - begin, {"class": "Model"}))
    samples = [
        Sample(PROGRAMS, "memory", "allocated_bytes", at, random.randrange(1 << 28, 1 << 30))
        for at in range(begin, now, 100 * US)
    ]
    marks = [Instant(MAIN, "fallback", "aten::roll", begin + 3 * US)]
    return Piece(sorted(slices, key=lambda one: one.start_ns), marks, samples, flows), now


def ops(slices: list[Slice], track: Track, now: int, depth: int) -> tuple[int, Slice]:
    """An op with the ops that it calls, and its end."""
    begin, now = now, now + random.randrange(500, 3000)
    if depth > 1:
        for _ in range(random.randrange(1, 4)):
            now, _ = ops(slices, track, now, depth - 1)
    now += random.randrange(500, 9000)
    name = f"aten::{OPS[random.randrange(len(OPS))]}"
    op = Slice(track, "cpu_op", name, begin, now - begin, {"Sequence number": begin // 1000})
    slices.append(op)
    return now + 200, op


def end(op: Slice) -> FlowEnd:
    """The start of an arrow in an op."""
    return FlowEnd(op.track, op.start_ns + 1)


def program(begin: int) -> Iterator[Slice]:
    """A run of a program and its layers."""
    yield Slice(PROGRAMS, "program", "head", begin, 850 * US, {"device": "CPU", "stream": 0})
    for number in range(40):
        details = {"type": "FullyConnected", "precision": "bf16", "duration_us": 20}
        details["implementation"] = "brgemm_avx512_bf16"
        name = f"linear_{number}/aten.linear.default"
        yield Slice(PROGRAMS, "layer", name, begin + number * 20 * US, 20 * US, details)

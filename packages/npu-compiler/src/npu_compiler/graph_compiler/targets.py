"""Targets of programs, and the content keys under which they are cached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.nodes import plain_tensor
from npu_compiler.options import CompilerConfig
from npu_compiler.programs import content_key
from npu_runtime import device_info
from npu_runtime.npu import as_cpu

__all__ = [
    "CAPTURED",
    "ProgramContent",
    "ProgramFacts",
    "TargetChoice",
    "choose_target",
    "is_for_npu",
    "program_content",
]

# On OpenVINO's CPU plugin both run on the same cores, and a call of OpenVINO's program has more
# overhead than a kernel program.

CAPTURED = "a captured graph holds programs of the device, not host code"

# Sizes for which kernels are faster: they were in every case from 1 row of width 16 to 16 rows of
# width 1,024, on two Zen 3 cores, 2026-11-23 (packages/npu-compiler/benchmarks/small_graphs.py).
# The bounds have a margin for processors on which the device's compiler is better.
_MOST_ROWS = 8
_MOST_MULTIPLICATIONS = 1 << 22
# Below this the calling thread finishes before others wake up.
_MOST_MULTIPLICATIONS_ALONE = 1 << 18


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """Facts for the choice of a target."""

    device: str  # OpenVINO's name for the device
    kind: str  # of the graph: inference, forward or backward
    precision: str  # precision of the program
    rows: int | None  # number of rows of its tensors; None for dynamic shapes
    multiplications: int  # number of multiplications in its products
    # Reason why kernels are not possible for this graph, or None.
    refusal: str | None = None


@dataclass(frozen=True)
class TargetChoice:
    """A program's target ("openvino" or "kernels"), the reason, and whether it uses one thread."""

    target: str
    reason: str
    is_alone: bool = False


def choose_target(facts: ProgramFacts, config: CompilerConfig) -> TargetChoice:
    """Chooses the target of a program."""
    reason = _obstacle(facts, config)
    if reason is not None:
        return TargetChoice("openvino", reason)
    rows = facts.rows
    assert rows is not None
    work = f"{_count(rows, 'row')}, {_count(facts.multiplications, 'multiplication')}"
    is_alone = facts.multiplications <= _MOST_MULTIPLICATIONS_ALONE
    if config.target == "kernels":
        return TargetChoice("kernels", f"as asked for: {work}", is_alone)
    if rows > _MOST_ROWS or facts.multiplications > _MOST_MULTIPLICATIONS:
        return TargetChoice("openvino", f"much work: {work}")
    return TargetChoice("kernels", f"little work: {work}", is_alone)


def is_for_npu(config: CompilerConfig, device: str) -> bool:
    """Whether programs must have only operations that the NPU's compiler accepts."""
    return config.target == "NPU" or (config.target is None and device.startswith("NPU"))


def _obstacle(facts: ProgramFacts, config: CompilerConfig) -> str | None:
    if facts.refusal is not None:
        return facts.refusal
    if config.target == "openvino":
        return "as asked for"
    if config.target == "NPU":
        return "the target is an NPU"
    if not facts.device.startswith("CPU"):
        return f"the device is {facts.device}, not the host's cores"
    if facts.kind != "inference":
        return "a graph for training"
    if config.compression is not None:
        return "weights are compressed"
    if config.device_options:
        return "device_options are for OpenVINO"
    if facts.precision != "float32":
        return f"computes in {facts.precision}"
    if facts.rows is None:
        return "sizes vary"
    return None if facts.rows else "has no rows"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# npu_compiler.programs.cache stores programs under these keys.

# Two threads hash 3 GB/s; more do not help when memory is the limit.
_THREADS = 2


@dataclass(frozen=True)
class ProgramContent:
    """The content of a program without its weights; JSON-compatible."""

    graph: str  # hash of the graph's text
    attributes: Mapping[str, str]  # name -> hash, of tensors that belong to the graph
    weights: tuple[str, ...]  # placeholder names of the weights, sorted
    orders: Any  # of the axes of inputs and outputs
    compression: tuple[Any, ...]  # compressed form of the weights
    ops: tuple[str, ...]  # names of the ops in it
    nan: str | None = None  # forms that propagate NaN; see npu_compiler.lowering.nan
    check_indices: bool = True  # whether it outputs indices that may be out of range
    is_for_npu: bool = False

    def key(self, weights: Mapping[str, torch.Tensor], *, options: Mapping[str, str]) -> str:
        """Returns the key of the program with these weights, by their bytes."""
        return content_key(
            {
                "graph": self.graph,
                "tensors": _digests({name: weights[name] for name in self.weights}),
                "attributes": dict(self.attributes),
                "orders": self.orders,
                "options": dict(options),
                "compression": self.compression,
                "nan": self.nan,
                "check_indices": self.check_indices,
                "is_for_npu": self.is_for_npu,
            }
        )


def program_content(
    module: fx.GraphModule, *, weights: Iterable[str], orders: Any, config: CompilerConfig
) -> ProgramContent | None:
    """Returns the content of the program of a piece, or None if it is unknown.

    `orders` are of the axes of inputs and outputs, JSON-compatible. Code of other packages, such as
    a converter, is not in the key and may change: such a program is rebuilt in each process.
    """
    # Late: a graph known from an earlier process is not lowered.
    from npu_compiler.graph.nodes import op_name
    from npu_compiler.graph.origins import graph_text
    from npu_compiler.lowering import is_foreign

    targets = {node.target for node in module.graph.nodes if node.op == "call_function"}
    if any(is_foreign(target) for target in targets):
        return None
    attributes = {
        str(node.target): getattr(module, str(node.target))
        for node in module.graph.nodes
        if node.op == "get_attr"
    }
    return ProgramContent(
        graph=hashlib.sha256(graph_text(module.graph).encode()).hexdigest(),
        attributes=_digests(attributes),
        weights=tuple(sorted(weights)),
        orders=orders,
        compression=(config.compression, config.group_size, config.symmetric),
        ops=tuple(sorted(op_name(target) for target in targets)),
        nan=config.nan,
        check_indices=config.check_indices,
        is_for_npu=is_for_npu(config, device_info().device),
    )


def _digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(tensors, pool.map(_digest, tensors.values()), strict=True))


def _digest(tensor: torch.Tensor) -> str:
    """Returns a hash of dtype, sizes and elements."""
    source = plain_tensor(tensor)
    if source.device.type == "npu":
        source = as_cpu(source)  # waits for the device, so that host code may read the bytes
    head = f"{source.dtype} {tuple(source.shape)} "
    digest = hashlib.sha256(head.encode())
    if source.numel():
        elements: Any = source.view(-1).view(torch.uint8).numpy()
        digest.update(elements)
    return digest.hexdigest()

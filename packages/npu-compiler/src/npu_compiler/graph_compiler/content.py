"""What a program is made of, as a key: the graph's text, the weights' bytes, the options.

The cache that keeps programs under such keys is npu_compiler.programs.cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.graph_compiler.targets import is_for_npu
from npu_compiler.options import CompilerConfig
from npu_compiler.programs import content_key
from npu_runtime import device_info
from npu_runtime.npu import as_cpu

__all__ = ["ProgramContent", "program_content"]

# Two threads hash 3 GB/s here; more do not help where memory is the limit.
_THREADS = 2


@dataclass(frozen=True)
class ProgramContent:
    """All that a program is made of but its weights; JSON-like.

    Attributes:
        graph: hash of the graph's text.
        attributes: name -> hash, of tensors that belong to the graph.
        weights: placeholder names of the weights, sorted.
        orders: of the axes of inputs and outputs.
        compression: what weights are compressed to.
        ops: names of the ops in it.
        nan: which forms pass NaN on; see npu_compiler.lowering.nan.
        check_indices: whether it tells indices that may be out of range.
    """

    graph: str
    attributes: Mapping[str, str]
    weights: tuple[str, ...]
    orders: Any
    compression: tuple[Any, ...]
    ops: tuple[str, ...]
    nan: str | None = None
    check_indices: bool = True
    is_for_npu: bool = False

    def key(self, weights: Mapping[str, torch.Tensor], *, options: Mapping[str, str]) -> str:
        """Returns the key of the program with these weights, which are told apart by their bytes.

        Args:
            weights: placeholder name -> weight.
            options: of the device's compiler.
        """
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
    """Returns what the program of a graph is made of, or None when that cannot be said.

    Code of others that makes a part of the program, as a converter from outside, is not in the key,
    and may change: such a program is rebuilt in each process.

    Args:
        module: the piece of a graph that the program is for.
        weights: placeholder names of the weights in it.
        orders: of the axes of inputs and outputs, JSON-like.
        config: what else decides about the program: compression, NaN.
    """
    # Late: a graph that is known from an earlier process is not lowered.
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
    """A hash of dtype, sizes and elements."""
    source = tensor.detach()
    if source.device.type == "npu":
        source = as_cpu(source)  # waits for the device; host code may read its bytes
    source = source.contiguous()
    head = f"{source.dtype} {tuple(source.shape)} "
    digest = hashlib.sha256(head.encode())
    if source.numel():
        elements: Any = source.reshape(-1).view(torch.uint8).numpy()
        digest.update(elements)
    return digest.hexdigest()

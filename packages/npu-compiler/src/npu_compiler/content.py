"""What a program is made of, as a key: the graph's text, the weights' bytes, the options.

The cache that keeps programs under such keys is npu_compiler.programs.cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx

from npu_compiler.graph_text import graph_text
from npu_compiler.lowering import find_converter
from npu_compiler.options import CompilerConfig
from npu_compiler.programs import content_key
from npu_runtime.npu import as_cpu

__all__ = ["program_key"]

# Two threads hash 3 GB/s here; more do not help where memory is the limit.
_THREADS = 2


def program_key(
    module: fx.GraphModule,
    *,
    constants: Mapping[str, torch.Tensor],
    orders: Any,
    options: Mapping[str, str],
    config: CompilerConfig,
) -> str | None:
    """Returns the key of the program that a graph would become, or None when it has none.

    Code of others that makes a part of the program, as a converter from outside, is not in the key,
    and may change: such a program is made anew in each process.

    Args:
        module: the piece of a graph that the program is for.
        constants: placeholder name -> weight; told apart by their bytes.
        orders: of the axes of inputs and outputs, JSON-like.
        options: of the device's compiler.
        config: what else decides about the program: compression.
    """
    if any(_is_foreign(node) for node in module.graph.nodes):
        return None
    attributes = {
        str(node.target): getattr(module, str(node.target))
        for node in module.graph.nodes
        if node.op == "get_attr"
    }
    tensors = {**{f"attribute {key}": value for key, value in attributes.items()}, **constants}
    with ThreadPoolExecutor(_THREADS) as pool:
        digests = dict(zip(tensors, pool.map(_digest, tensors.values()), strict=True))
    return content_key(
        {
            "graph": graph_text(module.graph),
            "tensors": digests,
            "orders": orders,
            "options": dict(options),
            "compression": (config.compression, config.group_size, config.symmetric),
        }
    )


def _is_foreign(node: fx.Node) -> bool:
    """Whether a call's converter is not one of this package."""
    row = find_converter(node.target) if node.op == "call_function" else None
    return row is not None and not row.function.__module__.startswith("npu_compiler.")


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

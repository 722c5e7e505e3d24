"""The weights that a program with compressed ones computes with, as torch can compute with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from npu_compiler.quantize import CompressionReport
from npu_compiler.quantize.weights import quantize_weight
from npu_compiler.verification.comparison import on_host

__all__ = ["decompressed"]


def decompressed(
    weights: Mapping[str, torch.Tensor], report: CompressionReport, *, symmetric: bool
) -> dict[str, torch.Tensor] | str:
    """Returns weights by name, the compressed ones as what their integers stand for.

    Args:
        weights: name -> weight, exact.
        report: which were compressed, and how; rounded to nearest.
        symmetric: whether without zero points.

    Returns:
        Why it cannot be said, where a compressed weight is not one of these as it is.
    """
    found = {name: on_host(weight) for name, weight in weights.items()}
    uses = Counter(weight.name for weight in report.weights)
    for weight in report.weights:
        exact = weights.get(weight.name)
        if exact is None or uses[weight.name] > 1:
            return f"{weight.name} was compressed in a form that no weight of the model has"
        matrix = on_host(exact)
        matrix = matrix if weight.is_transposed else matrix.t()
        if tuple(matrix.shape) != weight.shape:
            return f"{weight.name} was compressed in another shape than the model has"
        bits = int(weight.mode.removeprefix("int"))
        integers = quantize_weight(
            matrix, bits=bits, group_size=weight.group_size, symmetric=symmetric
        )
        values = integers.dequantize().to(exact.dtype)
        found[weight.name] = values if weight.is_transposed else values.t()
    return found

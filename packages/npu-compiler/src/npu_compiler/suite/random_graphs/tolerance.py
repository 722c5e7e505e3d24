"""How far a compiled graph's results may lie from eager's, from what happens on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npu_compiler.suite.random_graphs.graph import RandomGraph

__all__ = ["allowed_differences", "difference"]

# Rounding of one op, relative to the largest number on the way to a result, by the coarsest dtype.
_ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}
# Eager's own distance from float64 shows how far a graph spreads rounding.
_SPREAD = 8.0


def allowed_differences(
    graph: RandomGraph, expected: Sequence[torch.Tensor], precision: str | None = None
) -> list[float]:
    """Returns the largest difference each result may have.

    Args:
        graph: on its own inputs.
        expected: eager's results, and the inputs after the run.
        precision: in which programs compute, beside the graph's own dtypes.
    """
    values = [v for v in graph.values() if isinstance(v, torch.Tensor)]
    wide = graph.values(wide=True)
    exact = [wide[index] for index in graph.outputs]
    floats = [value for value in values if value.is_floating_point()]
    largest = max((_largest(value) for value in floats), default=0.0)
    dtypes = {value.dtype for value in floats}
    if precision is not None and dtypes:
        dtypes.add(getattr(torch, precision))
    coarsest = max((_ROUNDING[d] for d in dtypes if d in _ROUNDING), default=2e-5)
    bounds = []
    for index, tensor in enumerate(expected):
        if not tensor.is_floating_point():
            bounds.append(0.0)
            continue
        noise = 0.0
        if index < len(exact) and exact[index].shape == tensor.shape:
            noise = _largest(tensor.double() - exact[index].double())
        bounds.append(coarsest * max(1.0, largest) + _SPREAD * noise)
    return bounds


def difference(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], allowed: Sequence[float]
) -> str:
    """Returns what differs by more than is allowed, or an empty text.

    NaN equals NaN alone, and an infinity the same infinity.
    """
    for index, (result, reference) in enumerate(zip(results, expected, strict=True)):
        left = result.detach().cpu()
        if (left.dtype, left.shape) != (reference.dtype, reference.shape):
            return (
                f"result {index}: {left.dtype} {tuple(left.shape)}, eager has {reference.dtype} "
                f"{tuple(reference.shape)}"
            )
        if not left.numel():
            continue
        if left.dtype.is_floating_point:
            odd = _odd_place(left, reference)
            if odd:
                return f"result {index}: {odd}"
            gap = _largest(left.double() - reference.double())
        else:
            # Exactly, and without the overflow of a difference of integers.
            gap = float((left != reference).any())
        if not gap <= allowed[index]:
            return f"result {index}: differs by {gap:.3g}, allowed {allowed[index]:.3g}"
    return ""


def _odd_place(left: torch.Tensor, reference: torch.Tensor) -> str:
    """Where one is NaN or infinite and the other is something else."""
    same = (left == reference) | (left.isnan() & reference.isnan())
    odd = ~same & (~left.isfinite() | ~reference.isfinite())
    if not bool(odd.any()):
        return ""
    return f"has {float(left[odd][0])} where eager has {float(reference[odd][0])}"


def _largest(gap: torch.Tensor) -> float:
    """The largest finite difference."""
    finite = gap.abs()[gap.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0

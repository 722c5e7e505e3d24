"""How far a compiled graph's results may lie from eager's, from what happens on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from npu_compiler.suite.random_graphs.graph import RandomGraph

__all__ = ["allowed_differences", "difference", "unsettled_places"]

# Rounding of one op, relative to the largest number on the way to a result, by the coarsest dtype.
_ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}
# Eager's own distance from float64 shows how far a graph spreads rounding. So does what becomes of
# a result when all is rounded otherwise, by as much as can be, which calls for less room.
_SPREAD, _SPREAD_OTHERWISE = 8.0, 2.0
_DISTURBANCES = 3
# Below it a number is exact as far as drawing is concerned: it may decide a comparison.
_TINY = 1e-30
_LEAST_NORMAL = torch.finfo(torch.float32).tiny


def allowed_differences(
    graph: RandomGraph, expected: Sequence[torch.Tensor], precision: str | None = None
) -> list[float]:
    """Returns the largest difference each result may have.

    Args:
        graph: on its own inputs.
        expected: eager's results, and the inputs after the run, as RandomGraph.compared gives them.
        precision: in which programs compute, beside the graph's own dtypes.
    """
    values = [v for v in graph.values() if isinstance(v, torch.Tensor)]
    floats = [value for value in values if value.is_floating_point()]
    largest = max((_largest(value) for value in floats), default=0.0)
    dtypes = {value.dtype for value in floats}
    if precision is not None and dtypes:
        dtypes.add(getattr(torch, precision))
    coarsest = max(
        (dtype for dtype in dtypes if dtype in _ROUNDING),
        key=lambda dtype: _ROUNDING[dtype],
        default=torch.float32,
    )
    exact = graph.compared(graph.values(wide=True))
    others = [(list(expected), _SPREAD)]
    for seed in range(_DISTURBANCES):
        disturb = _rounded_otherwise(coarsest, seed)
        found = graph.compared(graph.values(wide=True, disturb=disturb))
        others.append((found, _SPREAD_OTHERWISE))
    bounds = []
    for index, tensor in enumerate(expected):
        if not tensor.is_floating_point():
            bounds.append(0.0)
            continue
        noise = max(room * _distance(other[index], exact[index]) for other, room in others)
        bounds.append(_ROUNDING[coarsest] * max(1.0, largest) + noise)
    return bounds


def _rounded_otherwise(
    dtype: torch.dtype, seed: int
) -> Callable[[Any, Sequence[torch.Tensor]], None]:
    """Changes numbers that a dtype does not hold, by what it rounds off the largest beside them."""
    generator = torch.Generator().manual_seed(seed)

    def disturb(value: Any, operands: Sequence[torch.Tensor]) -> None:
        for part in value if isinstance(value, (tuple, list)) else [value]:
            if not isinstance(part, torch.Tensor) or not part.is_floating_point():
                continue
            if 0 in part.stride():  # elements share memory: it cannot be written
                continue
            is_rounded = (part != part.to(dtype)) & part.isfinite() & (part.abs() > _TINY)
            sizes = [_largest(one) for one in (*operands, part) if one.is_floating_point()]
            step = torch.finfo(dtype).eps / 2 * max(1.0, *sizes)
            shares = torch.rand(part.shape, generator=generator, dtype=torch.float64) * 2 - 1
            if bool(is_rounded.any()):
                part += torch.where(is_rounded, step * shares, 0.0)

    return disturb


def unsettled_places(
    graph: RandomGraph, expected: Sequence[torch.Tensor], allowed: Sequence[float]
) -> list[torch.Tensor]:
    """Returns where torch itself gives something else, of which docs/guides/nan.md tells.

    That is where it takes denormals for zeros, and where another of its kernels for attention,
    gelu or convolution looks at numbers that are not finite.

    Args:
        graph: on its own inputs.
        expected: eager's results, as for allowed_differences.
        allowed: the largest difference of each.
    """
    values = [v for v in graph.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    contexts: list[contextlib.AbstractContextManager[Any]] = []
    if any(bool(((v != 0) & (v.abs() < _LEAST_NORMAL)).any()) for v in values):
        contexts.append(_without_denormals())
    calls = {step.target for step in graph.steps}
    if not all(bool(value.isfinite().all()) for value in values):
        if "F.scaled_dot_product_attention" in calls:
            contexts.append(sdpa_kernel(SDPBackend.MATH))
        if calls & {"F.gelu", "F.conv1d", "F.conv2d"}:
            contexts.append(_OtherKernels())
    places = [torch.zeros(tensor.shape, dtype=torch.bool) for tensor in expected]
    for context in contexts:
        with context:
            others = graph.compared(graph.values())
        for place, other, reference, bound in zip(places, others, expected, allowed, strict=True):
            place |= ~_is_near(other, reference, bound)
    return places


@contextlib.contextmanager
def _without_denormals() -> Iterator[None]:
    """Of this thread, which is the only one for tensors as small as these."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class _OtherKernels(TorchFunctionMode):
    """What other kernels may give: for gelu of an infinity, and for weights that meet padding."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Makes a call."""
        options = kwargs or {}
        result = func(*args, **options)
        if func is F.gelu and options.get("approximate", "none") == "none":
            return _changed(result, args[0].isinf())
        if func not in (F.conv1d, F.conv2d) or bool(args[1].isfinite().all()):
            return result
        image, weight, *rest = args
        options = {name: value for name, value in options.items() if name != "bias"}
        ones = torch.ones_like(image, memory_format=torch.contiguous_format)
        places = func(ones, torch.ones_like(weight), None, *rest[1:], **options)
        return _changed(result, places < weight[0].numel())


def _changed(result: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Something else at these places, whatever stands there."""
    other = torch.where(
        result.isnan(), torch.zeros_like(result), torch.full_like(result, torch.nan)
    )
    return torch.where(places, other, result)


def difference(
    results: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    allowed: Sequence[float],
    unsettled: Sequence[torch.Tensor] = (),
) -> str:
    """Returns what differs by more than is allowed, or an empty text.

    NaN equals NaN alone, and an infinity the same infinity.

    Args:
        results: of a compiled graph.
        expected: of eager.
        allowed: the largest difference of each.
        unsettled: places of each that are not compared; empty for none.
    """
    for index, (result, reference) in enumerate(zip(results, expected, strict=True)):
        left = result.detach().cpu()
        if (left.dtype, left.shape) != (reference.dtype, reference.shape):
            return (
                f"result {index}: {left.dtype} {tuple(left.shape)}, eager has {reference.dtype} "
                f"{tuple(reference.shape)}"
            )
        wrong = ~_is_near(left, reference, allowed[index])
        if unsettled:
            wrong &= ~unsettled[index]
        if bool(wrong.any()):
            return f"result {index}: {_told(left[wrong], reference[wrong], allowed[index])}"
    return ""


def _is_near(left: torch.Tensor, reference: torch.Tensor, allowed: float) -> torch.Tensor:
    """Where two tensors of one dtype and shape differ by no more than is allowed."""
    same = left == reference
    if not left.dtype.is_floating_point:
        return same  # exactly, and without the overflow of a difference of integers
    are_finite = left.isfinite() & reference.isfinite()
    gap = (left.double() - reference.double()).abs()
    return same | (left.isnan() & reference.isnan()) | (are_finite & (gap <= allowed))


def _told(left: torch.Tensor, reference: torch.Tensor, allowed: float) -> str:
    """What is wrong with numbers that are."""
    odd = ~(left.isfinite() & reference.isfinite())
    if bool(odd.any()):
        return f"has {float(left[odd][0])} where eager has {float(reference[odd][0])}"
    is_float = left.dtype.is_floating_point
    gap = _largest(left.double() - reference.double()) if is_float else 1.0
    return f"differs by {gap:.3g}, allowed {allowed:.3g}"


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    if left.shape != right.shape:  # data decide on it
        return 0.0
    return _largest(left.double() - right.double())


def _largest(gap: torch.Tensor) -> float:
    """The largest finite number, without its sign."""
    finite = gap.abs()[gap.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0

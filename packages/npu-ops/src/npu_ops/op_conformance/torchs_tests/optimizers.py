"""Checks of one entry of torch's optimizer database, on npu against the CPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from npu_ops.op_conformance.cell import Cell, Sample, cell_of
from npu_ops.op_conformance.comparison import difference

__all__ = ["optimizer_cells"]

_STEPS = 5


def optimizer_cells(
    info: Any, dtype: torch.dtype, *, most_samples: int | None = None
) -> list[Cell]:
    """The cells of one optimizer and dtype, one for each implementation (foreach, fused, ...)."""
    implementations = [name for name in info.supported_impls if name != "capturable"]
    return [
        cell_of(
            info.name,
            str(dtype).removeprefix("torch."),
            implementation,
            itertools.islice(_samples(info, dtype, implementation), most_samples),
        )
        for implementation in implementations
    ]


def _samples(info: Any, dtype: torch.dtype, implementation: str) -> Iterator[Sample]:
    for given in info.optim_inputs_func(device="cpu", dtype=dtype):
        options = dict(given.kwargs)
        if options.get("capturable"):
            continue  # a capture of CUDA's
        for name in ("foreach", "fused"):
            if name in info.supported_impls:
                options[name] = name == implementation
        yield functools.partial(_compare, info, dtype, options)


def _compare(info: Any, dtype: torch.dtype, options: dict[str, Any]) -> str | None:
    return difference(_trained(info, dtype, options, "npu"), _trained(info, dtype, options, "cpu"))


def _trained(info: Any, dtype: torch.dtype, options: dict[str, Any], device: str) -> Any:
    """Weights after some steps, or the class of the error."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    try:
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in options.items()
        }
        weights = [random(2, 3), random(2), random(4, 1, 2)]
        for weight in weights:
            weight.requires_grad_()
        matrices = weights[:1] if info.optim_cls is torch.optim.Muon else weights
        optimizer = info.optim_cls(matrices, **moved)
        for _ in range(_STEPS):
            for weight in matrices:
                gradient = random(*weight.shape)
                weight.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
            if info.step_requires_closure:
                optimizer.step(lambda: sum(weight.square().sum() for weight in matrices))
            else:
                optimizer.step()
    except Exception as error:  # noqa: BLE001  # the class is compared
        return type(error)
    return [weight.detach() for weight in matrices]

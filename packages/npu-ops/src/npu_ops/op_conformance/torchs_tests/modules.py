"""Checks of one entry of torch's ModuleInfo database, on npu against the CPU."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from npu_ops.op_conformance.cell import Cell, Sample, cell_of
from npu_ops.op_conformance.comparison import (
    copy_to,
    difference,
    gradients,
    outcome,
    placement,
    seed_devices,
)

__all__ = ["module_cells"]


def module_cells(info: Any, dtype: torch.dtype, *, most_samples: int | None = None) -> list[Cell]:
    """The cells of one module and dtype: in training and for inference, forward and backward."""
    return [
        cell_of(
            info.name,
            str(dtype).removeprefix("torch."),
            "training" if training else "inference",
            itertools.islice(_samples(info, dtype, training=training), most_samples),
        )
        for training in (True, False)
    ]


def _samples(info: Any, dtype: torch.dtype, *, training: bool) -> Iterator[Sample]:
    seed_devices(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for given in inputs:
        if given.forward_input is not None:
            yield functools.partial(_compare, info, given, dtype, training=training)


def _compare(info: Any, given: Any, dtype: torch.dtype, *, training: bool) -> str | None:
    seed_devices(1)
    build = given.constructor_input
    here = info.module_cls(*build.args, **build.kwargs).to(dtype).train(training)
    there = copy.deepcopy(here).to("npu")
    call = (None, given.forward_input.args, given.forward_input.kwargs)
    host, device = copy_to(call, "cpu"), copy_to(call, "npu")
    expected = outcome(lambda _, *args, **kwargs: here(*args, **kwargs), host)
    got = outcome(lambda _, *args, **kwargs: there(*args, **kwargs), device)
    wrong = difference(got, expected)
    if wrong is not None or isinstance(expected, type):
        return wrong
    return (
        placement(["npu"], got)
        or difference(
            gradients([device, list(there.parameters())], got),
            gradients([host, list(here.parameters())], expected),
        )
        or difference(dict(there.named_buffers()), dict(here.named_buffers()))
    )

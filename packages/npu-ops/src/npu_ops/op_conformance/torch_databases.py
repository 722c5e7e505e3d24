"""Checks npu against the CPU with torch's OpInfo, ModuleInfo and optimizer databases."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.op_conformance.cell import Cell, Sample, cell_of
from npu_ops.op_conformance.comparison import (
    copy_to,
    difference,
    gradients,
    outcome,
    placement,
    seed_devices,
)
from npu_ops.tolerances import is_undefined, stays_on_cpu

__all__ = ["CHECKS", "DTYPES", "module_cells", "operator_cells", "optimizer_cells"]


DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def operator_cells(
    op: Any,
    dtype: torch.dtype,
    *,
    checks: tuple[str, ...] | None = None,
    most_samples: int | None = None,
) -> list[Cell]:
    """Returns the cells of an op and dtype.

    Args:
        op: an entry of torch.testing's ``op_db``.
        dtype: a dtype that the op supports on the CPU.
        checks: names from `CHECKS`; None for all that apply.
        most_samples: maximum samples of each check; None for all.
    """
    return [
        cell_of(
            op.formatted_name,
            str(dtype).removeprefix("torch."),
            name,
            itertools.islice(CHECKS[name](op, dtype), most_samples),
        )
        for name in checks or CHECKS
    ]


def _arguments(sample: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return sample.input, sample.args, sample.kwargs


def _samples(op: Any, dtype: torch.dtype, *, requires_grad: bool = False) -> Iterator[Any]:
    # op.sample_inputs would read each caller's source to find the name of torch's test.
    seed_devices(0)
    yield from op.sample_inputs_func(op, "cpu", dtype, requires_grad)


def _tensors(sample: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(_arguments(sample)) if isinstance(leaf, torch.Tensor)]


def _on_both(call: Callable[..., Any], sample: Any) -> tuple[Any, Any, Any, Any]:
    """Returns a sample's arguments on npu and on the CPU, and the results of both calls."""
    there, here = (_placed(call, sample, device) for device in ("npu", "cpu"))
    expected = outcome(call, here)
    return there, here, outcome(call, there), expected


def _placed(call: Callable[..., Any], sample: Any, device: str) -> Any:
    """Moves a sample's arguments to a device, except tensors that torch requires on the CPU."""
    values, arguments, keywords = copy_to(_arguments(sample), device)
    if stays_on_cpu(call):
        arguments, keywords = copy_to((sample.args, sample.kwargs), "cpu")
    return values, arguments, keywords


def _forward_of(op: Any, sample: Any) -> str | None:
    there, _, got, expected = _on_both(op, sample)
    if isinstance(expected, type) or isinstance(got, type):
        return difference(got, expected)
    wrong_place = placement(there, got)
    return wrong_place or (
        None if is_undefined(op) else difference(got, expected, op.formatted_name)
    )


def _forward(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _samples(op, dtype):
        yield functools.partial(_forward_of, op, sample)


def _noncontiguous(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype is not torch.float32:
        return
    for sample in _samples(op, dtype):
        if all(tensor.layout is torch.strided for tensor in _tensors(sample)):
            yield functools.partial(_forward_of, op, sample.noncontiguous())


def _backward_of(op: Any, sample: Any) -> str | None:
    there, here, got, expected = _on_both(op, sample)
    if isinstance(expected, type) or isinstance(got, type):
        return difference(got, expected)
    return difference(gradients(there, got), gradients(here, expected), op.formatted_name)


def _backward(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype is not torch.float32 or not op.supports_autograd:
        return
    for sample in _samples(op, dtype, requires_grad=True):
        yield functools.partial(_backward_of, op, sample)


def _inplace_of(op: Any, variant: Callable[..., Any], sample: Any) -> str | None:
    there, here, got, expected = _on_both(variant, sample)
    wrong = difference(got, expected, op.formatted_name)
    if wrong is None and not isinstance(expected, type):
        wrong = difference(there[0], here[0], op.formatted_name)
        if wrong is None and isinstance(got, torch.Tensor) and got is not there[0]:
            wrong = "the result is not the tensor that was written"
    return wrong


def _inplace(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    variant = op.get_inplace()
    if dtype is not torch.float32 or variant is None or is_undefined(op):
        return
    for sample in _samples(op, dtype):
        yield functools.partial(_inplace_of, op, variant, sample)


def _out_of(op: Any, sample: Any, *, resized: bool) -> str | None:
    there, here = (copy_to(_arguments(sample), device) for device in ("npu", "cpu"))
    result = outcome(op, here)
    results = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(each, torch.Tensor) for each in results):
        return None  # an error, or numbers, which the forward check has compared

    def write(arguments: Any, device: str) -> Any:
        outs = tuple(
            torch.empty(0, dtype=each.dtype, device=device)
            if resized
            else torch.ones_like(each, device=device)
            for each in results
        )
        given = arguments[2] | {"out": outs if isinstance(result, tuple) else outs[0]}
        returned = outcome(op, (arguments[0], arguments[1], given))
        return returned if isinstance(returned, type) else outs

    expected, got = write(here, "cpu"), write(there, "npu")
    return difference(got, expected, op.formatted_name) or placement(["npu"], got)


def _out(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype is not torch.float32 or not op.supports_out or is_undefined(op):
        return
    for sample in _samples(op, dtype):
        for resized in (False, True):
            yield functools.partial(_out_of, op, sample, resized=resized)


def _errors(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype is not torch.float32 or op.error_inputs_func is None:
        return
    seed_devices(0)
    for error in op.error_inputs_func(op, "cpu"):
        yield functools.partial(_forward_of, op, error.sample_input)


# Check by name; each returns None if it does not apply to the op or dtype.
CHECKS: dict[str, Callable[[Any, torch.dtype], Iterator[Sample]]] = {
    "forward": _forward,
    "backward": _backward,
    "in-place": _inplace,
    "out": _out,
    "non-contiguous": _noncontiguous,
    "errors": _errors,
}


def module_cells(info: Any, dtype: torch.dtype, *, most_samples: int | None = None) -> list[Cell]:
    """Returns the cells of a module and dtype: training and inference, forward and backward."""
    return [
        cell_of(
            info.name,
            str(dtype).removeprefix("torch."),
            "training" if training else "inference",
            itertools.islice(_module_samples(info, dtype, training=training), most_samples),
        )
        for training in (True, False)
    ]


def _module_samples(info: Any, dtype: torch.dtype, *, training: bool) -> Iterator[Sample]:
    seed_devices(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for given in inputs:
        if given.forward_input is not None:
            yield functools.partial(_compare_modules, info, given, dtype, training=training)


def _compare_modules(info: Any, given: Any, dtype: torch.dtype, *, training: bool) -> str | None:
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


_STEPS = 5


def optimizer_cells(
    info: Any, dtype: torch.dtype, *, most_samples: int | None = None
) -> list[Cell]:
    """Returns the cells of an optimizer and dtype, one per implementation (foreach, fused, ...)."""
    implementations = [name for name in info.supported_impls if name != "capturable"]
    return [
        cell_of(
            info.name,
            str(dtype).removeprefix("torch."),
            implementation,
            itertools.islice(_optimizer_samples(info, dtype, implementation), most_samples),
        )
        for implementation in implementations
    ]


def _optimizer_samples(info: Any, dtype: torch.dtype, implementation: str) -> Iterator[Sample]:
    for given in info.optim_inputs_func(device="cpu", dtype=dtype):
        options = dict(given.kwargs)
        if options.get("capturable"):
            continue  # CUDA graph capture
        for name in ("foreach", "fused"):
            if name in info.supported_impls:
                options[name] = name == implementation
        yield functools.partial(_compare_optimizers, info, dtype, options)


def _compare_optimizers(info: Any, dtype: torch.dtype, options: dict[str, Any]) -> str | None:
    return difference(_trained(info, dtype, options, "npu"), _trained(info, dtype, options, "cpu"))


def _trained(info: Any, dtype: torch.dtype, options: dict[str, Any], device: str) -> Any:
    """Returns weights after some steps, or the class of the error."""
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

"""OpAutoCompare against kernels with faults that real kernels had: each is found, and named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from npu_ops.debugging import OpAutoCompare

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Fault:
    """A kernel with a fault, a program that triggers it, and the tool's expected report."""

    name: str
    op: str
    kernel: Kernel
    program: Callable[[], Any]
    says: str


FAULTS: list[Fault] = []


def fault(op: str, program: Callable[[], Any], says: str) -> Callable[[Kernel], Kernel]:
    def take(kernel: Kernel) -> Kernel:
        name = kernel.__name__.removeprefix("_").replace("_", "-")
        FAULTS.append(Fault(name, op, kernel, program, says))
        return kernel

    return take


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.linspace(-2, 2, math.prod(shape)).reshape(shape).to(dtype).to("npu")


def on_npu(*values: float) -> torch.Tensor:
    return torch.tensor(values, device="npu")


@fault("sum.dim_IntList", lambda: torch.full((2, 4096), 0.1, device="npu").half().sum(1), "off")
def _accumulates_in_float16(x, dim, keepdim=False, *, dtype=None):
    total = torch.zeros(x.shape[0], dtype=torch.float16)
    for column in x.cpu().unbind(1):
        total = total + column
    return total.to("npu")


@fault("slice.Tensor", lambda: ramp(8, 4)[2:5], "result 0")
def _slices_one_too_far(x, dim=0, start=None, end=None, step=1):
    size, stride = list(x.shape), x.stride()
    size[dim] = min(end, size[dim]) - (start or 0)
    return x.as_strided(size, stride, x.storage_offset() + ((start or 0) + 1) * stride[dim])


@fault("add_.Tensor", lambda: ramp(8).add_(1), "argument 0")
def _does_not_write_in_place(x, other, *, alpha=1):
    return x


@fault("view", lambda: ramp(8).view(2, 4).add_(1), "is in")
def _gives_a_copy_for_a_view(x, size):
    return x.clone().as_strided(size, torch.empty(size, device="meta").stride(), 0)


def _write_after_a_view() -> torch.Tensor:
    x = ramp(8)
    view = x[:4]
    x.mul_(3)
    return view


@fault("mul_.Tensor", _write_after_a_view, "is in")
def _leaves_views_stale(x, other):
    other = other.cpu() if isinstance(other, torch.Tensor) else other
    return x.set_((x.cpu() * other).to("npu"))


def _train_gelu() -> None:
    x = ramp(64).requires_grad_()
    torch.nn.functional.gelu(x).sum().backward()


@fault("gelu_backward", _train_gelu, "elements are off")
def _differentiates_the_wrong_formula(grad, x, *, approximate="none"):
    return torch.ops.aten.gelu_backward(grad.cpu(), x.cpu(), approximate="tanh").to("npu")


@fault("argmax", lambda: ramp(4, 8).argmax(1), "expected int64")
def _counts_in_int32(x, dim=None, keepdim=False):
    return x.cpu().argmax(dim, keepdim).int().to("npu")


@fault(
    "index_select",
    lambda: ramp(400, 2).index_select(0, torch.tensor([3, 300], device="npu")),
    "elements are off",
)
def _reads_indices_as_bytes(x, dim, index):
    return x.cpu().index_select(dim, index.cpu().to(torch.uint8).int()).to("npu")


@fault(
    "div.Tensor_mode",
    lambda: torch.div(ramp(9), on_npu(0.3), rounding_mode="floor"),
    "elements are off",
)
def _loses_the_rounding_mode(x, other, *, rounding_mode):
    return (x.cpu() / other.cpu()).to("npu")


@fault("add.Tensor", lambda: ramp(4, 4) + ramp(4), "elements are off")
def _broadcasts_along_the_wrong_axis(x, other, *, alpha=1):
    return (x.cpu() + alpha * other.cpu()[:, None]).to("npu")


@fault(
    "native_layer_norm",
    lambda: torch.nn.functional.layer_norm(ramp(4, 8) * 0.01, (8,)),
    "elements are off",
)
def _drops_epsilon(x, shape, weight, bias, eps):
    results = torch.ops.aten.native_layer_norm(x.cpu(), shape, None, None, 0.0)
    return tuple(result.to("npu") for result in results)


@fault("normal_", lambda: torch.empty(8, device="npu").normal_(), "random stream")
def _draws_from_the_cpus_stream(x, mean=0.0, std=1.0, *, generator=None):
    return x.copy_(torch.empty(x.shape).normal_(mean, std))


@fault("bernoulli.p", lambda: torch.bernoulli(ramp(64), 0.5), "random stream")
def _draws_the_same_again(x, p, *, generator=None):
    state = torch.npu.get_rng_state()
    drawn = torch.empty(x.shape, device="npu").bernoulli_(p)
    torch.npu.set_rng_state(state)
    return drawn


@fault("mul.Tensor", lambda: ramp(3, 5).t() * ramp(5, 3), "elements are off")
def _reads_strided_memory_as_contiguous(x, other):
    flat = x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())
    return (flat.cpu() * other.cpu()).to("npu")


@fault(
    "clone",
    lambda: ramp(2, 3, 4, 5).clone(memory_format=torch.channels_last),
    "expected strides",
)
def _loses_the_memory_format(x, *, memory_format=None):
    return x.cpu().clone(memory_format=torch.contiguous_format).to("npu")


@fault("maximum", lambda: torch.maximum(on_npu(1.0, math.nan), on_npu(math.nan, 2.0)), "are off")
def _forgets_nan(x, other):
    a, b = x.cpu(), other.cpu()
    return torch.where(a > b, a, b).to("npu")


@fault("fill_.Scalar", lambda: ramp(4, 6)[:, ::2].fill_(7), "does not write")
def _writes_between_the_elements(x, value):
    gaps = x.as_strided((x.shape[0] * 6 - 1,), (1,))
    gaps.copy_(torch.full(gaps.shape, float(value)))
    return x


@fault("native_batch_norm", lambda: torch.nn.BatchNorm1d(4).to("npu")(ramp(8, 4)), "argument")
def _does_not_update_statistics(x, weight, bias, mean, var, training, momentum, eps):
    own = [None if one is None else one.cpu() for one in (weight, bias, mean, var)]
    results = torch.ops.aten.native_batch_norm(x.cpu(), *own, training, momentum, eps)
    return tuple(result.to("npu") for result in results)


@fault("relu", lambda: torch.relu(ramp(8)), "argument 0: memory changed")
def _overwrites_its_input(x):
    x.copy_(x.cpu().clamp(min=0))
    return x.clone()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_and_named(fault: Fault, plant: Any) -> None:
    with OpAutoCompare() as sound:
        fault.program()
    assert sound.passed, sound.report()

    plant(fault.op, fault.kernel)
    with OpAutoCompare() as tool:
        fault.program()

    (difference,) = tool.differences
    signature, verdict = difference
    assert signature.startswith(f"aten.{fault.op}")
    assert fault.says in verdict.problem
    assert not tool.report().is_passed

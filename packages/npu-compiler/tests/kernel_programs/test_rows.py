"""Rows of graphs of tensors: derived from all calls; others are refused or OpenVINO's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from npu_compiler.errors import LoweringError
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.kernel_programs.rows import derive_rows
from npu_compiler.kernel_programs.tensor_graphs import lower_tensors_to_kernels
from npu_ops.kernel_programs.execution import TensorExecution

WEIGHT = torch.linspace(-1, 1, 35).reshape(7, 5)
BIAS = torch.linspace(-2, 1, 7)


def rows_of(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    traced = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*inputs)
    return derive_rows(traced.graph, ())


def test_rows_are_what_all_calls_have_in_common():
    x = torch.ones(4, 6)
    assert rows_of(lambda x: [x.tanh() + 1], x) == 4
    assert rows_of(lambda x: [x.tanh(), x[:2] * 2], x) == 2
    assert rows_of(lambda x: [x[0] + 1, x * 2], x) == 1
    assert rows_of(lambda x: [x.view(2, 12) * 2], x) == 2
    assert rows_of(lambda x: [x.view(8, 3).relu().view(4, 6) + x], x) == 4


def test_products_of_other_rows_are_refused_by_name():
    def function(x, w):
        return [F.linear(x, w) + 1, F.linear(x[:1], w)]

    with pytest.raises(LoweringError, match="takes 1 rows, where linear takes 3") as caught:
        rows_of(function, torch.ones(3, 5), WEIGHT)
    assert caught.value.code == "no-kernel"


def test_a_tensor_that_cannot_be_cut_is_refused_by_name():
    def function(x, w):
        return [F.linear(x, w)[-1] * 2]

    traced = make_fx(function, tracing_mode="fake", pre_dispatch=True)(torch.ones(3, 5), WEIGHT)
    with pytest.raises(LoweringError, match="7 elements, where linear takes 3 rows"):
        lower_tensors_to_kernels(traced, {"w_1": WEIGHT})


def test_a_norm_across_rows_is_refused():
    def function(x, w):  # 4 rows of 6, and a norm of 4 elements
        return [F.linear(x, w), F.layer_norm(x.view(6, 4), (4,))]

    weight = torch.ones(6, 6)
    traced = make_fx(function, tracing_mode="fake", pre_dispatch=True)(torch.ones(4, 6), weight)
    with pytest.raises(LoweringError, match="normalizes 4 elements, rows have 6"):
        lower_tensors_to_kernels(traced, {"w_1": weight})


def gru(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(7)
    for row in x:
        update = (F.linear(row, WEIGHT) + state).sigmoid()
        state = update * state + (1 - update) * (F.linear(row, WEIGHT, BIAS) * state).tanh()
    return state


def changed_rows(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for row in y:
        row.mul_(2).add_(1)
    return y


FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a row and the whole": lambda x: (x[0] + 1, x * 2),
    "a head on the last row": lambda x: (F.linear(x, WEIGHT)[-1] * 2, F.linear(x, WEIGHT)),
    "a second layer on one row": lambda x: F.linear(F.linear(x, WEIGHT)[-1].relu(), WEIGHT.t()),
    "a part of the rows": lambda x: (F.gelu(x[:2]), x * 1.5),
    "every other row": lambda x: (F.silu(x[::2]), x + 1),
    "differences of rows": lambda x: (x[1:] - x[:-1], x / 3),
    "differences of a vector": lambda x: (x[0, 1:] - x[0, :-1], x[0] * 2),
    "rows changed in a loop": changed_rows,
    "a recurrence": gru,
    "rows of two inputs": lambda x: (x + 1, (x[0] * WEIGHT[0], WEIGHT.relu())),
    "a number": lambda x: (x[0, 0] * 2, x + 1),
    "an outer product": lambda x: (x[0].outer(x[1]), x - 1),
    "a norm of one row": lambda x: (F.layer_norm(x[1], (5,)), F.rms_norm(x, (5,))),
    "a norm of other vectors": lambda x: F.layer_norm(x[:, :4].reshape(-1, 2), (2,)) + 1,
    "columns": lambda x: (x[:, 1] * 2, x[:, 1:3] + x[:, 2:4]),
}


LOWERED = ("a row and the whole", "differences of rows", "differences of a vector", "a number")


@pytest.mark.parametrize("shape", [(2, 5), (3, 5), (5, 5), (6, 5)], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_forms_are_refused_or_computed_as_torch_does(name, shape):
    form, x = FORMS[name], torch.randn(*shape)
    expected = pytree.tree_leaves(form(x))
    flat = torch.func.functionalize(lambda x: pytree.tree_leaves(form(x)))
    try:
        lowered = lower_tensors_to_kernels(make_fx(flat)(x), {})
    except LoweringError:
        assert name not in LOWERED
        return
    execution = TensorExecution(
        lowered.program,
        lowered.weights,
        rows=lowered.rows,
        arguments=[(0, tuple(x.shape))],
        results=[tuple(one.shape) for one in expected],
        device="cpu",
        is_alone=True,
        name=name,
    )
    torch.testing.assert_close(execution.run((x,)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["a row and the whole", "a head on the last row", "a recurrence"])
def test_what_is_refused_is_compiled_for_openvino(name):
    torch._dynamo.reset()
    form, x = FORMS[name], torch.randn(3, 5)
    with torch.no_grad(), collecting() as records:
        found = torch.compile(form, backend="npu", options={"target": "kernels"})(x)
        torch.testing.assert_close(found, form(x), rtol=1e-4, atol=1e-5)
    programs = [program for record in records for program in record.programs]
    assert programs
    assert all(one.target == "kernels" or one.target_reason for one in programs)

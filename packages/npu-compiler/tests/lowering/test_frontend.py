"""Calls without a converter: OpenVINO's frontend lowers them once it was seen to be right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.errors import LoweringError
from npu_compiler.lowering import find_converter, frontend, registry

aten = torch.ops.aten


@pytest.mark.parametrize(
    "function, shapes",
    [
        (
            lambda x: F.grid_sample(x, torch.tanh(x[:, :, :, :2]), align_corners=False),
            [(1, 2, 4, 4)],
        ),
        (lambda x: F.fold(x, (4, 4), (2, 2)), [(1, 8, 9)]),
        (lambda x: torch.cdist(x, 2 * x[1:]), [(4, 5)]),
        (lambda x, y: x.masked_scatter(y > 0, y), [(3, 4), (3, 4)]),
    ],
    ids=["grid_sample", "fold", "cdist", "masked_scatter"],
)
@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_long_tail_is_in_the_program(compiled, close, function, shapes, device, on_npu, request):
    inputs = [torch.randn(shape) for shape in shapes]
    model = lambda *given: torch.tanh(function(*given)) + 1  # noqa: E731
    fast = compiled(model)
    with torch.no_grad():
        close(fast(*[x.to(device) for x in inputs]), model(*inputs), 1e-4)
    # The frontend's form finds the indices of True; programs of an NPU must not depend on their
    # number.
    is_refused = on_npu and "masked_scatter" in request.node.name
    assert fast.eager_ops == (["aten.masked_scatter.default"] if is_refused else [])
    assert fast.programs == (2 if is_refused else 1)


def test_two_results_of_one_call(compiled, close, monkeypatch):
    monkeypatch.delitem(registry._TABLE, aten.adaptive_max_pool2d.default)
    x = torch.randn(1, 2, 6, 6)
    model = lambda x: [2 * part for part in F.adaptive_max_pool2d(x, 2, return_indices=True)]  # noqa: E731
    fast = compiled(model, options={"nan": "fast"})
    with torch.no_grad():
        close(fast(x), model(x))
    assert fast.eager_ops == []


def test_what_the_frontend_gets_wrong_runs_eagerly(compiled, close):
    # OpenVINO 2026.4 lowers kthvalue to other numbers, without a word.
    x = torch.randn(3, 5)
    model = lambda x: torch.tanh(x.kthvalue(2, 1).values)  # noqa: E731
    fast = compiled(model)
    with torch.no_grad():
        close(fast(x), model(x))
    (node,) = (node for record in fast.records for node in record.eager)
    assert node.op == "aten.kthvalue.default"
    assert "frontend gives" in node.reason


def test_what_the_frontend_does_not_know_runs_eagerly_with_both_reasons(compiled):
    fast = compiled(lambda x: torch.tanh(torch.digamma(x)))
    with torch.no_grad():
        fast(torch.rand(3, 4) + 1)
    reasons = [node.reason for record in fast.records for node in record.eager]
    assert len(reasons) == 1
    assert reasons[0].startswith("no converter registered")
    assert reasons[0].endswith("OpenVINO's frontend does not convert it")


def test_strict_names_the_op_that_neither_takes(compiled):
    fast = compiled(lambda x: torch.tanh(torch.digamma(x)), options={"strict": True})
    with torch.no_grad(), pytest.raises(LoweringError, match="digamma") as error:
        fast(torch.rand(3, 4) + 1)
    assert error.value.code == "no-converter"


def test_a_verdict_is_reached_once(compiled, monkeypatch):
    tried = []
    original = frontend._try
    monkeypatch.setattr(frontend, "_try", lambda node: tried.append(node.name) or original(node))
    monkeypatch.setattr(frontend, "_verdicts", {})
    assert find_converter(aten.erfinv.default) is None
    with torch.no_grad():
        compiled(lambda x: torch.tanh(torch.erfinv(x)))(torch.rand(3, 7) / 2)
        torch._dynamo.reset()
        compiled(lambda x: torch.sin(torch.erfinv(x)))(torch.rand(3, 7) / 2)
    assert len(tried) == 1


def test_a_sum_that_is_scattered_keeps_integers_exact(compiled, close):
    index = torch.tensor([[0, 1, 2, 0]])
    model = lambda x, w: torch.zeros(3, 4, dtype=torch.int64).scatter_add(0, index, x) + w.relu()  # noqa: E731
    fast = compiled(model)
    x, w = torch.randint(0, 9, (1, 4)), torch.randn(4)
    with torch.no_grad():
        close(fast(x, w), model(x, w))

"""custom_op in converters: OpenVINO operations, functions of torch, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import npu_compiler
from npu_compiler import custom_op, register_fx_node_converter
from npu_compiler.lowering.registry import _TABLE


@pytest.fixture
def make_op():
    """Defines ops with a reference, and takes ops and converters back afterwards."""
    library = torch.library.Library("custom_op_test", "FRAGMENT")
    present = set(_TABLE)

    def make(schema, reference, convert):
        name = library.define(schema)
        library.impl(name, reference, "CompositeExplicitAutograd")
        torch.library.register_fake(f"custom_op_test::{name}", reference, lib=library)
        op = getattr(torch.ops.custom_op_test, name).default
        register_fx_node_converter(op)(convert)
        return op

    yield make
    for key in set(_TABLE) - present:
        del _TABLE[key]
    library._destroy()


def explained(function, *inputs, **options):
    with torch.no_grad():
        return npu_compiler.explain(function, *inputs, options=options)


def compiled(function, *inputs, dynamic=None):
    with torch.no_grad():
        return torch.compile(function, backend="npu", dynamic=dynamic)(*inputs)


def scaled_swish(x, y, alpha=1.0):
    table = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
    return F.silu(x) * alpha + F.layer_norm(y, y.shape[-1:]) + table


SWISH = "scaled_swish(Tensor x, Tensor y, float alpha=1.0) -> Tensor"


def convert_swish(ctx, x, y, alpha):
    return custom_op(ctx, scaled_swish, [x, y], {"alpha": alpha})


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_function_of_torch_is_lowered_with_its_neighbours(make_op, close, device, dynamic):
    op = make_op(SWISH, scaled_swish, convert_swish)
    x, y = torch.randn(2, 3, 8, device=device)

    def function(x, y):
        return op(x @ y.T @ y, y, 0.5).relu()

    close(compiled(function, x, y, dynamic=dynamic), function(x, y))
    what = explained(function, x, y)
    assert (what.program_count, what.eager) == (1, ())


def test_function_may_return_several(make_op, close):
    def both(x):
        return x.exp(), x.amax(-1)

    op = make_op(
        "both(Tensor x) -> (Tensor, Tensor)", both, lambda ctx, x: custom_op(ctx, both, [x])
    )
    x = torch.randn(3, 4)

    def function(x):
        first, second = op(x)
        return first.sum(-1) + second

    close(compiled(function, x), function(x))


def test_operation_of_openvino_is_built_by_its_type(make_op, close):
    def reference(x, y):
        return x @ y.T

    op = make_op(
        "product(Tensor x, Tensor y) -> Tensor",
        reference,
        lambda ctx, x, y: custom_op(ctx, "MatMul", {"x": x, "y": y}, {"transpose_b": True}),
    )
    x, y = torch.randn(2, 3, 8)

    def function(x, y):
        return op(x, y) + 1

    close(compiled(function, x, y), function(x, y))
    assert explained(function, x, y).eager == ()


def test_operation_with_several_outputs_gives_all(make_op, close):
    def reference(x):
        return x.topk(2, -1)[0]

    def convert(ctx, x):
        attributes = {"axis": -1, "mode": "max", "sort": "value"}
        return custom_op(ctx, "TopK", [x, 2], attributes)[0]

    op = make_op("top(Tensor x) -> Tensor", reference, convert)
    x = torch.randn(3, 8)
    close(compiled(lambda x: op(x) * 2, x), reference(x) * 2)


@pytest.mark.parametrize(
    "convert, text",
    [
        (lambda ctx, x: custom_op(ctx, "SoftPluss", [x]), "no operation 'SoftPluss' (similar"),
        (lambda ctx, x: custom_op(ctx, "Elu", [x], {"beta": 1}), "no attribute 'beta'; it has"),
        (lambda ctx, x: custom_op(ctx, torch.linalg.inv, [x]), "aten.linalg_inv_ex.default"),
    ],
)
def test_what_there_is_not_is_refused_with_the_reason(make_op, close, convert, text):
    op = make_op("inverse(Tensor x) -> Tensor", torch.linalg.inv, convert)
    x = torch.randn(4, 4) + 4 * torch.eye(4)

    def function(x):
        return op(x @ x) @ x

    close(compiled(function, x), function(x), 1e-4)
    (left,) = explained(function, x).eager
    assert left.op == "custom_op_test.inverse.default"
    assert text in left.reason

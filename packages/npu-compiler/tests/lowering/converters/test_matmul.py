"""Matrix products against eager, and the folding of transposes into them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import LoweringError
from npu_compiler.lowering import lower

FLOATS = [torch.float32, torch.bfloat16, torch.float16]

PRODUCTS = {
    "a@b": lambda a, b: a @ b,
    "a@b.t().contiguous().t()": lambda a, b: a @ b.t().contiguous().t(),
    "linear(a,b.t().contiguous())": lambda a, b: F.linear(a, b.t().contiguous()),
    "linear(a,b.t().contiguous(),b[0])": lambda a, b: F.linear(a, b.t().contiguous(), b[0]),
    "addmm(b[0],a,b,beta=0.5,alpha=2.0)": lambda a, b: torch.addmm(b[0], a, b, beta=0.5, alpha=2.0),
    "bmm(a[None],b[None])": lambda a, b: torch.bmm(a[None], b[None]),
    "baddbmm(b[None,:1],a[None],b[None])": lambda a, b: torch.baddbmm(
        b[None, :1], a[None], b[None]
    ),
    "mv(a,b[:,0])": lambda a, b: torch.mv(a, b[:, 0]),
    "dot(a[0],b[:,0])": lambda a, b: torch.dot(a[0], b[:, 0]),
    "einsum('ij,jk->ki',a,b)": lambda a, b: torch.einsum("ij,jk->ki", a, b),
    "matmul(a[None,None],b)": lambda a, b: torch.matmul(a[None, None], b),
    "matmul(a.t(),a)": lambda a, b: torch.matmul(a.t(), a),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_product_equals_eager(lowers, dtype):
    lowers(PRODUCTS, torch.randn(4, 8).to(dtype), torch.randn(8, 6).to(dtype))


@pytest.mark.parametrize("bias", [True, False])
def test_linear_kept_whole_equals_eager(lowers, bias):
    weight, offset = torch.randn(6, 8), torch.randn(6)
    lowers(
        lambda x, w, b: F.linear(x, w, b if bias else None) + b,
        torch.randn(2, 3, 8), weight, offset, whole=True,
    )  # fmt: skip


def test_transposed_weight_becomes_the_products_flag():
    graph = make_fx(lambda x, w: F.linear(x, w), tracing_mode="fake")(
        torch.randn(4, 8), torch.randn(6, 8)
    )
    model = lower(graph, constants={"w_1": torch.randn(6, 8)}).model
    kinds = [node.get_type_name() for node in model.get_ordered_ops()]
    assert "Transpose" not in kinds
    product = next(n for n in model.get_ordered_ops() if n.get_type_name() == "MatMul")
    assert product.get_attributes()["transpose_b"] is True
    assert product.input_value(1).get_node().get_type_name() == "Constant"


def test_integer_product_is_refused_with_the_reason():
    graph = make_fx(lambda a, b: a @ b, tracing_mode="fake")(
        torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.int64)
    )
    with pytest.raises(LoweringError, match="int64 matrices would be computed in float32") as error:
        lower(graph)
    assert error.value.code == "cannot-lower"


def test_dynamic_rows_serve_other_sizes(lowers):
    lowers(
        lambda x, w: F.linear(x, w),
        torch.randn(2, 3, 8), torch.randn(6, 8),
        dynamic=True,
        run_on=(torch.randn(4, 5, 8), torch.randn(6, 8)),
    )  # fmt: skip

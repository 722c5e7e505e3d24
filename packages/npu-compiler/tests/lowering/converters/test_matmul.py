"""Matrix products against eager, and the folding of transposes into them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import npu_compiler
from npu_compiler.errors import LoweringError
from npu_compiler.graph.complex_numbers import pairs_of_complex, pairs_of_real, real_of_pairs
from npu_compiler.lowering import find_converter, lower

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


aten = torch.ops.aten


def _grouped(rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return aten._grouped_mm.default(rows, weight, ends)


@pytest.mark.parametrize("ends", [[2, 5, 8], [0, 0, 8], [8, 8, 8], [3, 3, 5]], ids=str)
def test_rows_go_through_their_groups_matrix(lowers, ends):
    rows, weight = torch.randn(8, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    bounds = torch.tensor(ends, dtype=torch.int32)
    if ends[-1] == len(rows):
        lowers(_grouped, rows, weight, bounds)
    else:  # eager leaves the rows behind the last end unwritten
        lowers(lambda r, w, e: _grouped(r, w, e)[: ends[-1]], rows, weight, bounds)


@pytest.mark.parametrize("ends", [[2, 5, 8], [0, 0, 8], [8, 8, 8], [3, 3, 5]], ids=str)
def test_fixed_sizes_give_the_same_rows(ends, tmp_path):
    pytest.importorskip("transformers.integrations.moe")

    class Routed(torch.nn.Module):
        def forward(self, rows, weight, ends):
            return torch.ops.transformers.grouped_mm_fallback.default(rows, weight, ends)

    given = (torch.randn(8, 16), torch.randn(3, 16, 8), torch.tensor(ends))
    given[0][1, 2], given[1][2, 0, 0] = float("nan"), float("inf")
    npu_compiler.export(Routed(), given, tmp_path / "m", target="NPU")
    found = npu_compiler.load(tmp_path / "m")(*given)
    torch.testing.assert_close(found, Routed()(*given), equal_nan=True)


def test_transformers_op_has_a_converter_once_it_exists(lowers):
    pytest.importorskip("transformers.integrations.moe")
    op = torch.ops.transformers.grouped_mm_fallback.default
    assert find_converter(op) is not None
    ends = torch.tensor([2, 2, 5])
    lowers(lambda r, w, e: op(r, w, e), torch.randn(5, 4), torch.randn(3, 4, 6), ends)


@pytest.mark.parametrize(
    "dims, scale", [([0], 1.0), ([1], 0.25), ([2], 1.0), ([1, 2], 0.25), ([2, 0], 1.0),
                    ([0, 1, 2], 0.25)]
)  # fmt: skip
def test_transforms_equal_eager(lowers, dims, scale):
    torch.manual_seed(0)
    real, pairs = torch.randn(4, 5, 6), torch.randn(4, 5, 6, 2)
    size = pairs.shape[dims[-1]]
    transforms = {
        "of real": lambda x, y: pairs_of_real(x, dims, scale),
        "of complex": lambda x, y: pairs_of_complex(y, dims, False, scale),
        "inverse of complex": lambda x, y: pairs_of_complex(y, dims, True, scale),
        "to an even length": lambda x, y: real_of_pairs(y, dims, 2 * size - 2, scale),
        "to an odd length": lambda x, y: real_of_pairs(y, dims, 2 * size - 1, scale),
    }
    lowers(transforms, real, pairs)


def test_ops_are_those_of_torch():
    x = torch.randn(3, 8)
    assert torch.equal(pairs_of_real(x, [1], 1.0), torch.view_as_real(torch.fft.rfft(x)))
    pairs = torch.randn(3, 8, 2)
    value = torch.view_as_complex(pairs)
    expected = torch.view_as_real(torch.fft.ifft(value))
    torch.testing.assert_close(pairs_of_complex(pairs, [1], True, 1 / 8), expected)
    torch.testing.assert_close(real_of_pairs(pairs, [1], 14, 1 / 14), torch.fft.irfft(value))

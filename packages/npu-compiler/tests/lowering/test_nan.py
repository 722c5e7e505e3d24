"""NaN, infinities, -0.0 and denormals at every position of each family of ops, as in eager."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import npu_compiler
from npu_compiler.graph_compiler.records import (
    GraphRecord,
    ProgramRecord,
    collecting,
    recalled_record,
)
from npu_compiler.lowering import lower
from npu_compiler.lowering.frontend import frontend_refusal
from npu_compiler.single_op import lower_op
from npu_ops.variants.call import parse_call

aten = torch.ops.aten
nan, inf = math.nan, math.inf
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
# Tails and whole vectors of kernels; the long run has all sizes up to 17.
SIZES = [
    size if size in (1, 17) else pytest.param(size, marks=pytest.mark.long) for size in range(1, 18)
]
SPECIAL = [nan, inf, -inf, -0.0, 1e-40]
VARYING = [
    size if size == 7 else pytest.param(size, marks=pytest.mark.long) for size in range(1, 18)
]


def rows(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One row per special value and position, and rows of several and of nothing else."""
    generator = torch.Generator().manual_seed(size)
    found = []
    for value, position in itertools.product(SPECIAL, range(size)):
        row = torch.randn(size, generator=generator)
        row[position] = value
        found.append(row)
    found += [torch.full((size,), value) for value in SPECIAL[:4]]
    for one, other in itertools.permutations((nan, inf, -inf), 2):
        row = torch.randn(size, generator=generator)
        row[0], row[-1] = one, other
        found.append(row)
    return torch.stack(found).to(dtype)


def pairs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Each pair of special values."""
    values = torch.tensor([nan, inf, -inf, -0.0, 0.0, -1.0, 2.5, -3.5, 1.0])
    count = len(values)
    return values.repeat_interleave(count).to(dtype), values.repeat(count).to(dtype)


ACTIVATIONS = {
    "relu": F.relu, "relu6": F.relu6, "hardtanh": F.hardtanh, "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "elu": F.elu, "softplus": F.softplus,
    # For an infinity torch's kernels return NaN or infinity, depending on the place in memory.
    "gelu": lambda x: F.gelu(torch.where(x.isinf(), x.sign(), x)),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "mish": F.mish, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "scaled elu": lambda x: aten.elu.default(x, 1.5, 1.05, 0.9),
}  # fmt: skip
UNARY = {
    **ACTIVATIONS,
    **{
        name: getattr(torch, name)
        for name in (
            "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
            "atan", "asinh", "erf", "sign", "floor", "ceil", "round", "trunc", "square", "neg",
            "isnan", "isinf", "logical_not",
        )
    },
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp from below": lambda x: aten.clamp_min.default(x, 0.5),
    "clamp from above": lambda x: aten.clamp_max.default(x, 0.5),
    "clamp to nothing": lambda x: aten.clamp.default(x, nan, 1.0),
    "clamp to infinity": lambda x: x.clamp(-inf, inf),
    "logit": lambda x: torch.logit(x, 0.1),
    "masked_fill": lambda x: x.masked_fill(x > 0, -inf),
    "where": lambda x: torch.where(x == inf, 1.0, x),
    "remainder": lambda x: torch.remainder(x, 2.0),
    "fmod": lambda x: torch.fmod(x, 2.0),
    "inverse": lambda x: x**-1,
    "threshold_backward": lambda x: aten.threshold_backward.default(x, x, 0),
    "x != x": lambda x: x != x,
    "x - x": lambda x: x - x,
    "0 * x": lambda x: 0 * x,
}  # fmt: skip
BINARY = {
    "logaddexp": torch.logaddexp,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "pow": torch.pow, "div": torch.div,
    "lt": torch.lt,
    "ge": torch.ge, "eq": torch.eq, "ne": torch.ne, "where": lambda x, y: torch.where(x > y, x, y),
    "clamp": lambda x, y: aten.clamp.Tensor(x, y, x.flip(0)),
    "clamp_min": lambda x, y: aten.clamp_min.Tensor(x, y),
    "clamp_max": lambda x, y: aten.clamp_max.Tensor(x, y),
    "prelu": lambda x, y: aten._prelu_kernel.default(x, y),
}  # fmt: skip
REDUCTIONS = {
    "amax": lambda x: x.amax(-1), "amin": lambda x: x.amin(-1), "amax columns": lambda x: x.amax(0),
    "max": torch.max, "min": torch.min, "max.dim": lambda x: tuple(x.max(-1)),
    "min.dim": lambda x: tuple(x.min(-1, keepdim=True)), "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1), "argmin of all": torch.argmin,
    "argmax columns": lambda x: x.argmax(0), "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1), "prod": lambda x: x.prod(-1), "cumsum": lambda x: x.cumsum(-1),
    "logsumexp": lambda x: x.logsumexp(-1), "norm": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "sort": lambda x: torch.sort(x, dim=-1, stable=True)[0],
    "sort down": lambda x: tuple(torch.sort(x, dim=-1, descending=True, stable=True)),
    "topk": lambda x: torch.topk(x, (x.shape[-1] + 1) // 2)[0],
    "least": lambda x: torch.topk(x, (x.shape[-1] + 1) // 2, largest=False)[0],
    "any": lambda x: x.any(-1), "all": lambda x: x.all(-1),
}  # fmt: skip
NORMS = {
    "softmax": lambda x: x.softmax(-1), "softmax of columns": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "safe softmax": lambda x: aten._safe_softmax.default(x, -1),
    "softmax in a product": lambda x: x.softmax(-1) @ x.new_ones(x.shape[-1], 3),
    "softmax by hand": lambda x: (
        (x - x.amax(-1, keepdim=True)).exp()
        / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
    ),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "dropout": lambda x: F.dropout(x, 0.5, training=False) + 0,
    "index_select": lambda x: x.index_select(0, x.new_zeros(2, dtype=torch.int64)),
    "cat": lambda x: torch.cat([x, x], 1),
}  # fmt: skip
FAMILIES = {"unary": UNARY, "reductions": REDUCTIONS, "norms": NORMS}


def together(family: dict, skipped: tuple[str, ...] = ()):
    """All ops of a family as one function."""
    kept = [function for name, function in family.items() if name not in skipped]
    return lambda *given: [function(*given) for function in kept]


def traced(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_eager_in_one_program(lowers, family, size):
    lowers(together(FAMILIES[family]), rows(size), whole=family == "norms")


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_eager_in_half_precision(lowers, family, dtype):
    lowers(together(FAMILIES[family]), rows(9, dtype), whole=family == "norms")


@pytest.mark.parametrize("size", VARYING)
@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_eager_where_sizes_vary(lowers, family, size):
    # These do not lower where sizes vary, or depend on them in Python.
    skipped = ("topk", "least", "layer_norm", "softmax in a product")
    function = together(FAMILIES[family], skipped)
    run_on = (rows(size),)
    lowers(function, rows(6), dynamic=True, run_on=run_on, whole=family == "norms")


@pytest.mark.long
@pytest.mark.parametrize(
    "family, name", [(family, name) for family, ops in FAMILIES.items() for name in ops]
)
def test_op_alone_equals_eager(lowers, family, name):
    lowers(lambda x: FAMILIES[family][name](x), rows(17), whole=family == "norms")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pairs_of_special_values_equal_eager(lowers, dtype):
    lowers(together(BINARY), *pairs(dtype))


@pytest.mark.parametrize("name", ["relu", "clamp", "maximum", "hardsigmoid", "exp"])
def test_chain_of_kernels_keeps_the_test_for_nan(lowers, name):
    # Fused into one kernel with its neighbours, x != x must not become false.
    family = {**UNARY, "maximum": lambda x: torch.maximum(x, x.flip(0))}
    lowers(lambda x: family[name](x * 2 + 1) * 0.5 - 1, rows(17))


def test_positions_of_adaptive_maxima_equal_eager(lowers):
    lowers(lambda x: F.adaptive_max_pool2d(x, (1, 3), return_indices=True), images())


def images(size: int = 9) -> torch.Tensor:
    return rows(size)[None, :, None].repeat(1, 1, 3, 1)


POOLS = {
    "padded": lambda x: F.max_pool2d(x, 2, 2, padding=1),
    "overlapping": lambda x: F.max_pool2d(x, 3, 1, padding=1),
    "beyond the end": lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
    "dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "1d": lambda x: F.max_pool1d(x[:, :, 0], 2, 1, 1),
    "3d": lambda x: F.max_pool3d(x[:, :, None], (1, 2, 2), 1, (0, 1, 1)),
    "average": lambda x: F.avg_pool2d(x, 2, 2, padding=1),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, (1, 3)),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 1),
}


def test_pools_equal_eager(lowers):
    lowers(together(POOLS), images())


@pytest.mark.parametrize("kernel", [2, 3])
def test_positions_of_nan_and_of_rows_of_minus_infinity_equal_eager(lowers, kernel):
    lowers(lambda x: F.max_pool2d(x, kernel, kernel, 1, return_indices=True), images())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_behind_a_product_or_convolution_passes_nan_on(lowers, name):
    activation = ACTIVATIONS[name]
    weight, kernel = torch.randn(4, 9), torch.randn(8, 4, 3, 3)
    lowers(
        lambda x, y, w, k: (
            activation(F.linear(x, w)),
            activation(F.conv2d(y, k, padding=1)),
            activation(F.conv2d(y, k, padding=1) + y[:, :1]),
        ),
        rows(9),
        images()[:, :4],
        weight,
        kernel,
    )


@pytest.mark.parametrize("place", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("value", [nan, inf])
def test_attention_passes_nan_on(lowers, place, value):
    parts = [torch.randn(1, 2, 9, 8) for _ in range(3)]
    parts[place][0, :, 4, 3] = value
    # Not every kernel of torch's keeps a query's NaN.
    with sdpa_kernel(SDPBackend.MATH):
        lowers(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *parts, whole=True)


def test_nan_in_a_mask_of_attention_is_kept(lowers):
    parts = [torch.randn(1, 2, 9, 8) for _ in range(3)]
    mask = torch.zeros(9, 9)
    mask[2, 3] = nan
    mask[4] = -inf
    mask[5, 2] = -inf
    lowers(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        *parts,
        mask,
        whole=True,
    )


def stack(x, w, k):
    return (
        F.relu(F.linear(x, w)),
        F.relu(x[0, 0] + F.conv2d(x[None, None], k) * 2),
        F.relu(x),
        x.amax(-1),
    )


@pytest.mark.parametrize(
    "mode, dropped",
    [
        ("propagate", ()),
        (None, ("aten.relu.default",) * 2),
        ("fast", ("aten.relu.default",) * 3 + ("aten.amax.default",)),
    ],
)
def test_only_forms_behind_products_may_drop_nan_by_default(mode, dropped):
    graph = make_fx(stack, tracing_mode="fake", pre_dispatch=True)(
        rows(9), torch.randn(4, 9), torch.randn(2, 1, 3, 3)
    )
    assert lower(graph, nan=mode).drops_nan == dropped


def test_pool_of_what_cannot_be_nan_is_plain():
    def pooled(x, k):
        return F.max_pool2d(F.relu(F.conv2d(x, k)), 2)

    graph = traced(pooled, torch.randn(1, 1, 8, 8), torch.randn(2, 1, 3, 3))
    models = {mode: lower(graph, nan=mode).model for mode in (None, "propagate")}
    counts = {
        mode: sum(node.get_type_name() == "MaxPool" for node in model.get_ordered_ops())
        for mode, model in models.items()
    }
    assert counts == {None: 1, "propagate": 2}


def test_exact_forms_consist_of_what_an_npu_takes():
    graph = traced(lambda x: (x.relu(), x.amax(-1), x.softmax(-1), x.sort(dim=-1)[0]), rows(9))
    kinds = {node.get_type_name() for node in lower(graph).model.get_ordered_ops()}
    assert not kinds & {"IsNaN", "IsInf", "IsFinite", "Einsum"}


def test_frontend_is_not_trusted_with_nan_it_loses():
    op = aten.bucketize.Tensor
    values = (torch.randn(6), torch.randn(6).sort()[0])
    (node,) = traced(lambda x, y: op(x, y), *values).graph.find_nodes(op="call_function", target=op)
    assert "drops NaN" in frontend_refusal(node)
    assert frontend_refusal(node, nan="fast") is None


def test_compiled_model_propagates_where_asked(compiled):
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    x = torch.full((2, 8), nan)
    with torch.no_grad():
        function = compiled(layer, options={"nan": "propagate", "verify": "off"})
        assert function(x).isnan().all()
    assert function.records[0].programs[0].drops_nan == ()


def test_explanation_names_forms_that_may_drop_nan():
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    with torch.no_grad():
        explained = npu_compiler.explain(layer, torch.randn(2, 8), options={"verify": "off"})
    assert explained.graphs[0].programs[0].drops_nan == ("npu.linear_relu.default",)
    assert "may drop NaN" in str(explained)


def test_training_propagates_whatever_the_option(compiled):
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    function = compiled(layer, options={"nan": "fast", "verify": "off"})
    x = torch.randn(2, 8)
    x[0, 3] = nan
    loss = function(x).sum()
    loss.backward()
    assert loss.isnan()
    assert layer[0].weight.grad.isnan().any()


def test_single_op_propagates():
    model = lower_op(parse_call("aten.relu", ["4x9xf32"])).model
    assert "NotEqual" in {node.get_type_name() for node in model.get_ordered_ops()}


def test_record_of_an_earlier_process_tells_what_may_drop_nan():
    program = ProgramRecord("p", 1, 1, 1, 0, "float32", 0.0, 0.0, drops_nan=("aten.relu.default",))
    record = GraphRecord("graph", "inference", 1, (program,), (), 0, 0)
    written = json.loads(json.dumps(asdict(record)))
    assert recalled_record(written, name="again").programs[0].drops_nan == program.drops_nan
    del written["programs"][0]["drops_nan"]  # as written before there were such forms
    assert recalled_record(written, name="again").programs[0].drops_nan == ()


def test_each_choice_is_a_program_of_its_own():
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    x = torch.full((2, 8), nan)
    found = {}
    for mode in ("fast", "propagate", "fast", "propagate"):
        torch._dynamo.reset()
        with torch.no_grad(), collecting() as records:
            options = {"nan": mode, "verify": "off"}
            result = torch.compile(layer, backend="npu", options=options)(x)
        (program,) = records[0].programs
        found.setdefault(mode, []).append((bool(result.isnan().all()), program.drops_nan))
    assert found["propagate"] == [(True, ())] * 2
    assert found["fast"] == [(False, ("npu.linear_relu.default",))] * 2

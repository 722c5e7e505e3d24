"""define_op: an op only in Python, eager, compiled and under torch's check of ops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import npu_compiler
from npu_compiler import custom_op, register_fx_node_converter
from npu_compiler.errors import RegistryError
from npu_compiler.lowering.registry import _TABLE

NAMESPACE = "define_op_test"
DEVICES = ["cpu", "npu"]


@pytest.fixture(autouse=True, scope="module")
def forget():
    present = set(_TABLE)
    yield
    for key in set(_TABLE) - present:
        del _TABLE[key]


@pytest.fixture(scope="module")
def leaky():
    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.slope = inputs[1]

    def backward(ctx, gradient, _):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, gradient, gradient * ctx.slope), None

    @npu_compiler.define_op(
        f"{NAMESPACE}::leaky",
        mutates_args=(),
        fake=lambda x, slope: (torch.empty_like(x), torch.empty_like(x)),
        backward=backward,
        setup_context=keep,
    )
    def leaky(x: torch.Tensor, slope: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(x > 0, x, x * slope), x.relu()

    return leaky


@pytest.fixture(scope="module")
def appended():
    def functional(cache, rows, start):
        return cache.index_copy(0, start + torch.arange(len(rows), device=rows.device), rows)

    @npu_compiler.define_op(
        f"{NAMESPACE}::append",
        mutates_args=("cache",),
        convert=lambda ctx, cache, rows, start: npu_compiler.custom_op(
            ctx, functional, [cache, rows, start]
        ),
    )
    def append(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
        cache.copy_(functional(cache, rows, start))

    return append


def test_gradient_and_torchs_check_of_the_op(leaky):
    x = torch.tensor([[-1.5, 2.0, 0.25], [3.0, -0.5, 1.0]], requires_grad=True)
    torch.library.opcheck(leaky, (x, 0.25))
    leaky(x, 0.25)[0].sum().backward()
    assert x.grad.tolist() == [[0.25, 1.0, 1.0], [1.0, 0.25, 1.0]]


@pytest.mark.parametrize("device", DEVICES)
def test_op_without_a_converter_runs_between_programs(leaky, close, device):
    def function(x):
        first, second = leaky(x @ x, 0.5)
        return first - second * 2

    x = torch.randn(5, 5, device=device)
    with torch.no_grad():
        close(torch.compile(function, backend="npu", fullgraph=True)(x), function(x))


@pytest.mark.parametrize("device", DEVICES)
def test_op_that_writes_is_in_the_program_and_writes_its_cache(appended, device):
    def function(cache, rows, start):
        appended(cache, rows * 3, start)
        return cache.sum(0)

    cache, rows = torch.full((6, 4), -1.0, device=device), torch.rand(2, 4).to(device)
    start = torch.tensor(3, device=device)
    eager = cache.clone()
    with torch.no_grad():
        what = npu_compiler.explain(function, eager.clone(), rows, start)
        assert (what.program_count, what.eager) == (1, ()), str(what)
        result = torch.compile(function, backend="npu", fullgraph=True)(cache, rows, start)
        torch.testing.assert_close(result, function(eager, rows, start))
    torch.testing.assert_close(cache, eager)


def test_torchs_check_of_an_op_that_writes(appended):
    torch.library.opcheck(appended, (torch.ones(6, 4), torch.rand(2, 4), torch.tensor(1)))


def nothing(x: torch.Tensor) -> None:
    """A function with a schema that can be inferred."""


@pytest.mark.parametrize(
    "options, text",
    [
        ({"name": "leaky", "mutates_args": ()}, "'leaky': the name must be"),
        ({"name": "a::b", "mutates_args": ("y",)}, "arguments of the function (x), got 'y'"),
        ({"name": "a::b", "mutates_args": ("x",), "backward": nothing}, "must not have a gradient"),
        (
            {"name": "a::b", "mutates_args": (), "setup_context": nothing},
            "must be given with `backward`",
        ),
        ({"name": "a::b", "mutates_args": (), "rule": nothing}, "must be given with `convert`"),
    ],
)
def test_parts_that_make_no_op_are_refused(options, text):
    with pytest.raises(RegistryError, match="define_op") as error:
        npu_compiler.define_op(**options)(nothing)
    assert error.value.code == "bad-op"
    assert text in str(error.value)


def test_function_without_annotations_is_refused():
    with pytest.raises(RegistryError, match="must have a schema") as error:
        npu_compiler.define_op(f"{NAMESPACE}::bare", mutates_args=())(lambda x: x.clone())
    assert error.value.code == "bad-op"


def test_second_definition_is_refused(leaky):
    with pytest.raises(RegistryError, match="must be defined only once, got a second") as error:
        npu_compiler.define_op(f"{NAMESPACE}::leaky", mutates_args=())(nothing)
    assert error.value.code == "duplicate-op"


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

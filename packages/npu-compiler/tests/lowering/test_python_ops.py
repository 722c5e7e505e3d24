"""define_op: an op in Python alone, eager, compiled and under torch's own check of ops."""

from __future__ import annotations

import pytest
import torch

import npu_compiler
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
    """A function whose schema is found."""


@pytest.mark.parametrize(
    "options, text",
    [
        ({"name": "leaky", "mutates_args": ()}, "'leaky': the name must be"),
        ({"name": "a::b", "mutates_args": ("y",)}, "arguments of the function, x; got 'y'"),
        ({"name": "a::b", "mutates_args": ("x",), "backward": nothing}, "has no gradient"),
        ({"name": "a::b", "mutates_args": (), "setup_context": nothing}, "goes with backward"),
        ({"name": "a::b", "mutates_args": (), "rule": nothing}, "goes with convert"),
    ],
)
def test_parts_that_make_no_op_are_refused(options, text):
    with pytest.raises(RegistryError, match="define_op") as error:
        npu_compiler.define_op(**options)(nothing)
    assert error.value.code == "bad-op"
    assert text in str(error.value)


def test_function_without_annotations_is_refused():
    with pytest.raises(RegistryError, match="torch must find a schema") as error:
        npu_compiler.define_op(f"{NAMESPACE}::bare", mutates_args=())(lambda x: x.clone())
    assert error.value.code == "bad-op"


def test_second_definition_is_refused(leaky):
    with pytest.raises(RegistryError, match="an op is defined once; got a second") as error:
        npu_compiler.define_op(f"{NAMESPACE}::leaky", mutates_args=())(nothing)
    assert error.value.code == "duplicate-op"

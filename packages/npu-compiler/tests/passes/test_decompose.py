"""Complex numbers as pairs: values and special values, and calls that stay complex."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler import GraphBuilder
from npu_compiler.passes.decompose import OpenComplexNumbers, SeparateConvolutionGradients
from npu_compiler.passes.infra.pass_base import Facts

PASS = OpenComplexNumbers()


def numbers(*shape, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.complex64, generator=made)


def rotated(x, angles):
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda a, b: a * b + a * 2 - b * 1j + 1, id="sums and products"),
        pytest.param(lambda a, b: (a.real * b, b * a.imag, a.real * 1j), id="mixed products"),
        pytest.param(lambda a, b: (a - b.real, a.imag - b, torch.sub(a, b, alpha=2)), id="mixed"),
        pytest.param(lambda a, b: (a / 3, b / (a.real.abs() + 1), -a), id="quotients"),
        pytest.param(lambda a, b: (a.conj() * b, b.conj(), a.exp()), id="conjugates"),
        pytest.param(lambda a, b: (a.abs(), torch.complex(a.imag, b.real)), id="real"),
        pytest.param(lambda a, b: (a @ b.mT, a.mT[None] @ b[None]), id="matrices"),
        pytest.param(lambda a, b: torch.cat([a, b], -1)[:, 1:-1].flip(-1).T, id="views"),
        pytest.param(lambda a, b: (a.reshape(4, -1), a[None].expand(2, -1, -1), a[1]), id="shapes"),
        pytest.param(lambda a, b: (a.unsqueeze(-1).squeeze(-1), b.repeat(2, 3)), id="axes"),
        pytest.param(lambda a, b: (a.sum(1), b.sum((0, 1)), a.sum(-1, keepdim=True)), id="totals"),
        pytest.param(lambda a, b: a.index_select(1, torch.tensor([2, 0])), id="picks"),
    ],
)
def test_values_are_those_of_complex_numbers(rewrites, function):
    a, b = torch.view_as_real(numbers(3, 4)), torch.view_as_real(numbers(3, 4, seed=1))

    def on_pairs(a, b):
        results = function(torch.view_as_complex(a), torch.view_as_complex(b))
        return [
            torch.view_as_real(one.resolve_conj()) if one.is_complex() else one
            for one in (results if isinstance(results, tuple) else [results])
        ]

    made = rewrites(on_pairs, a, b, passes=PASS)
    assert not any("view_as" in op or "complex" in op for op in made.ops)


@pytest.mark.parametrize("norm", ["forward", "ortho", "backward"])
def test_fourier_transforms_have_each_normalization(rewrites, norm):
    def transforms(x):
        spectrum = torch.fft.rfft2(x, norm=norm)
        back = torch.fft.irfft2(spectrum * 2, s=(5, 7), norm=norm)
        whole = torch.fft.ifft(torch.fft.fft(x, dim=0, norm=norm), norm=norm)
        return back, whole.real, torch.view_as_real(torch.fft.ihfft(x, norm=norm).resolve_conj())

    made = rewrites(transforms, torch.randn(5, 7), passes=PASS)
    assert not any("fft" in op for op in made.ops)


def test_the_length_of_a_number_is_right_at_the_ends_of_floats(rewrites):
    ends = torch.tensor([0.0, -0.0, 1e-30, 1e30, math.inf, -math.inf, math.nan, 1.5])
    grid = torch.stack(torch.meshgrid(ends, ends, indexing="ij"), -1)
    rewrites(lambda x: torch.view_as_complex(x).abs(), grid, passes=PASS)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda a: a / (a + 1), id="quotient"),
        pytest.param(torch.angle, id="angle"),
        pytest.param(lambda a: a.to(torch.complex128) * 2, id="wider"),
    ],
)
def test_what_has_no_rule_stays_complex_and_right(compiled, function):
    a = numbers(3, 4)
    torch.testing.assert_close(compiled(function)(a), function(a))


@pytest.mark.parametrize("dynamic", [False, True])
def test_rotation_by_complex_numbers_is_one_program(compiled, dynamic):
    x, angles = torch.randn(2, 5, 3, 8), torch.randn(5, 4)
    function = compiled(rotated, dynamic=dynamic, options={"target": "openvino"})
    torch.testing.assert_close(function(x, angles), rotated(x, angles))
    if not dynamic:
        assert function.programs == 1
        assert function.eager_ops == []


def test_complex_inputs_and_results_pass_as_views(compiled):
    def function(a, b):
        return a * b, (a - b).abs()

    a, b = numbers(3, 4), numbers(3, 4, seed=1)
    ours = compiled(function)
    for second in (b, b.conj(), b.T.contiguous().T):
        torch.testing.assert_close(ours(a, second), function(a, second))


def test_gradients_pass_through(compiled):
    def loss(x):
        return torch.fft.rfft(x).abs().sum() + torch.fft.irfft(torch.fft.rfft(x) * 2).square().sum()

    found, expected = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    expected.data.copy_(found.data)
    compiled(loss)(found).backward()
    loss(expected).backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_a_graph_of_real_numbers_is_left_alone():
    traced = make_fx(lambda x: x * 2, tracing_mode="fake")(torch.ones(2))
    assert PASS.run(traced.graph, Facts()).count == 0


def test_a_graph_built_by_hand_has_transforms():
    graph = GraphBuilder()
    x, kernel = graph.parameter((2, 16)), graph.parameter((2, 16))
    product = torch.fft.rfft(x, n=32) * torch.fft.rfft(kernel, n=32)
    graph.compile(torch.fft.irfft(product, n=32))
    inputs = torch.randn(2, 16), torch.randn(2, 16)
    rows = [
        torch.nn.functional.conv1d(
            torch.nn.functional.pad(a, (15, 15))[None, None], b.flip(0)[None, None]
        )[0, 0]
        for a, b in zip(*inputs, strict=True)
    ]
    torch.testing.assert_close(graph.run(*inputs)[:, :31], torch.stack(rows), rtol=1e-4, atol=1e-5)


PASS_SEPARATE_CONVOLUTION_GRADIENTS = SeparateConvolutionGradients()
OP = "aten.convolution_backward.default"
TENSORS = (torch.ones(1, 3, 4, 4), torch.ones(1, 2, 6, 6), torch.ones(3, 2, 3, 3))


def gradients(*mask):
    def call(g, x, w):
        one, none = [1, 1], [0, 0]
        result = torch.ops.aten.convolution_backward(
            g, x, w, [3], one, none, one, False, none, 1, list(mask)
        )
        # torch may compute more than it was asked for.
        return [part for part, is_asked in zip(result, mask, strict=True) if is_asked]

    return call


def test_gradient_of_the_input_is_separated(rewrites):
    done = rewrites(
        gradients(True, True, True),
        *TENSORS,
        passes=PASS_SEPARATE_CONVOLUTION_GRADIENTS,
        kind="backward",
    )
    assert (done.count, done.ops) == (1, [OP, OP])


def test_single_gradient_stays(rewrites):
    for mask in ((True, False, False), (False, True, True)):
        done = rewrites(
            gradients(*mask), *TENSORS, passes=PASS_SEPARATE_CONVOLUTION_GRADIENTS, kind="backward"
        )
        assert (done.count, done.ops) == (0, [OP])


def test_op_that_is_to_run_eagerly_stays(rewrites):
    kept = frozenset({OP})
    done = rewrites(
        gradients(True, True, True),
        *TENSORS,
        passes=PASS_SEPARATE_CONVOLUTION_GRADIENTS,
        kind="backward",
        kept_ops=kept,
    )
    assert done.count == 0

"""The program of a graph is compared with the calls that it was recorded as."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import npu_compiler
import npu_runtime
from npu_compiler import GraphBuilder, GraphTensor
from npu_compiler.errors import GraphError, LoweringError, WrongResultError, WrongResultWarning
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.lowering import registry
from npu_compiler.openvino_core import openvino_core

aten = torch.ops.aten
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def wrong_tanh(monkeypatch):
    """A converter that is off by a hundredth."""
    import dataclasses

    import openvino.opset15 as ops

    row = registry._TABLE[aten.tanh.default]

    def convert(ctx, self):
        return ops.multiply(ops.tanh(ctx.get(self)), ctx.number(1.01, ctx.out_dtype()))

    wrong = dataclasses.replace(row, function=convert)
    monkeypatch.setitem(registry._TABLE, aten.tanh.default, wrong)


def graph_of(**options):
    graph = GraphBuilder(**options)
    torch.tanh(graph.parameter((4, 8)) @ torch.eye(8)) * 2
    return graph


def test_wrong_program_gives_torchs_results_and_says_where(wrong_tanh, close):
    graph = graph_of()
    with pytest.warns(WrongResultWarning, match=r"test_builder\.py:\d+.*is off by"):
        close(graph.run(X), X.tanh() * 2)
    close(graph.run(X + 1), (X + 1).tanh() * 2)
    found = graph.run(X.numpy())
    assert isinstance(found, np.ndarray)


def test_wrong_program_is_an_error_under_strict(wrong_tanh):
    with pytest.raises(WrongResultError, match=r"\[wrong-result\]"):
        graph_of(strict=True).run(X)


def test_comparison_can_be_left_out(wrong_tanh):
    found = graph_of(verify="off").run(X)
    assert 0.005 < float((found / (X.tanh() * 2) - 1).abs().max()) < 0.02


def compared(graph, monkeypatch):
    """Counts the runs of a graph that are compared."""
    from npu_compiler.graph_builder import builder

    runs = []
    real = builder.GraphTrial.run

    def run(self, *args, **kwargs):
        runs.append(1)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(builder.GraphTrial, "run", run)
    for _ in range(3):
        graph.run(X)
    return len(runs)


@pytest.mark.parametrize("verify, count", [("first", 1), ("always", 3), ("off", 0)])
def test_runs_are_compared_as_the_option_says(monkeypatch, verify, count):
    assert compared(graph_of(verify=verify), monkeypatch) == count


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_narrow_precision_is_no_difference(recwarn, dtype):
    x, weight = torch.randn(4, 128), torch.randn(96, 128)
    graph = GraphBuilder(dtype=dtype, verify="always")
    graph.matmul(graph.parameter((4, 128)), graph.constant(weight)).softmax(-1)
    graph.run(x)
    assert not [w for w in recwarn if issubclass(w.category, WrongResultWarning)]


def test_results_of_a_compared_run_live_where_the_inputs_do():
    graph = graph_of()
    assert graph.run(X.to("npu")).device.type == "npu"


X_BUILDER = (2, 3, 4)

UNARY = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "ceiling": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "elu": F.elu,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "gelu": F.gelu,
    "gelu_erf": F.gelu,
    "grn": lambda x: x / (x.pow(2).sum(1, keepdim=True) + 1e-6).sqrt(),
    "hsigmoid": F.hardsigmoid,
    "hswish": F.hardswish,
    "log": torch.log,
    "log_softmax": lambda x: x.log_softmax(-1),
    "mish": F.mish,
    "negative": torch.neg,
    "relu": F.relu,
    "round": torch.round,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softmax": lambda x: x.softmax(-1),
    "softplus": F.softplus,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "squeeze": torch.squeeze,
    "swish": F.silu,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "convert_to_fp16": lambda x: x.half(),
}


def test_calls_with_one_input_equal_torch(close):
    inputs = torch.rand(X_BUILDER) * 0.9 + 0.05, torch.rand(X_BUILDER) * 0.9 + 1.05
    graph = GraphBuilder()
    given = graph.parameter(X_BUILDER), graph.parameter(X_BUILDER)
    for name in UNARY:
        getattr(graph, name)(given[name == "acosh"])
    for (name, function), result in zip(UNARY.items(), graph.run(*inputs), strict=True):
        try:
            expected = function(inputs[name == "acosh"])
            close(result, expected, 2e-3 if name == "convert_to_fp16" else 2e-5)
        except AssertionError as fault:
            fault.add_note(name)
            raise


IMAGE = (1, 2, 6, 6)

CALLS = {
    "matmul": (lambda g, x: g.matmul(x, x), lambda x: x @ x.mT),
    "matmul-trA": (lambda g, x: g.matmul(x, x, trA=True, trB=False), lambda x: x.mT @ x),
    "eltwise_add": (lambda g, x: g.eltwise_add(x, x), lambda x: x + x),
    "eltwise_mul": (lambda g, x: g.eltwise_mul(x, x), lambda x: x * x),
    "eltwise_div": (lambda g, x: g.eltwise_div(x, 2.0), lambda x: x / 2),
    "prelu": (
        lambda g, x: g.prelu(x, torch.tensor([0.3])),
        lambda x: torch.where(x > 0, x, 0.3 * x),
    ),
    "power": (lambda g, x: g.power(x, 3), lambda x: x**3),
    "clamp": (lambda g, x: g.clamp(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5)),
    "to": (lambda g, x: g.to(x, np.int32), lambda x: x.int()),
    "reshape": (lambda g, x: g.reshape(x, (4, -1)), lambda x: x.reshape(4, -1)),
    "transpose": (lambda g, x: g.transpose(x, (2, 0, 1)), lambda x: x.permute(2, 0, 1)),
    "unsqueeze": (lambda g, x: g.unsqueeze(x, (0, -1)), lambda x: x[None, ..., None]),
    "slice": (lambda g, x: g.slice(x, (0, 1), (2, 3), (1, 2)), lambda x: x[0:2, 1:3:2]),
    "concat": (lambda g, x: g.concat(x, x, axis=-1), lambda x: torch.cat([x, x], -1)),
    "reduce_max": (lambda g, x: g.reduce_max(x), lambda x: x.amax()),
    "reduce_min": (lambda g, x: g.reduce_min(x, 1, True), lambda x: x.amin(1, True)),
    "reduce_mean": (lambda g, x: g.reduce_mean(x, (0, 2)), lambda x: x.mean((0, 2))),
    "reduce_sum": (lambda g, x: g.reduce_sum(x, -1), lambda x: x.sum(-1)),
    "reduce_prod": (lambda g, x: g.reduce_prod(x, (0, -1)), lambda x: x.prod(2).prod(0)),
    "normL2": (lambda g, x: g.normL2(x, -1), lambda x: F.normalize(x, dim=-1)),
    "gather": (lambda g, x: g.gather(x, [[2, 0]], 1), lambda x: x[:, [[2, 0]]]),
    "attention": (
        lambda g, x: g.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    ),
}


def test_calls_equal_torch(close):
    x = torch.randn(X_BUILDER)
    graph = GraphBuilder()
    given = graph.parameter(X_BUILDER)
    for call, _ in CALLS.values():
        call(graph, given)
    for (name, (_, reference)), result in zip(CALLS.items(), graph.run(x), strict=True):
        try:
            close(result, reference(x))
        except AssertionError as fault:
            fault.add_note(name)
            raise


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_windows_slide_over_one_to_three_dimensions(rank, close):
    x, weight = torch.randn(1, 2, *[6] * rank), torch.randn(4, 1, *[3] * rank)
    bias = torch.randn(4)
    convolve = [F.conv1d, F.conv2d, F.conv3d][rank - 1]
    largest = [F.max_pool1d, F.max_pool2d, F.max_pool3d][rank - 1]
    mean = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][rank - 1]
    graph = GraphBuilder()
    given = graph.parameter(x.shape)
    parameters = graph.constant(weight), graph.constant(bias)
    graph.convolution(given, *parameters, strides=2, padding=1, groups=2)
    graph.max_pooling(given, 2, strides=1)
    graph.avg_pooling(given, 3, 2, padding=1, count_include_pad=False)
    expected = (
        convolve(x, weight, bias, 2, 1, 1, 2),
        largest(x, 2, 1),
        mean(x, 3, 2, 1, count_include_pad=False),
    )
    close(graph.run(x), expected)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_windows_are_as_many_as_asked_for(rank, close):
    x = torch.randn(1, 2, *[6] * rank)
    largest = [F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d][rank - 1]
    mean = [F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d][rank - 1]
    graph = GraphBuilder()
    given = graph.parameter(x.shape)
    graph.adaptive_max_pool(given, 4)
    graph.adaptive_avg_pool(given, 2)
    close(graph.run(x), (largest(x, 4), mean(x, 2)))


class Halved(GraphTensor):
    """A tensor with half of torch's quotient, which counts its elements."""

    def __truediv__(self, other):
        return torch.div(self, other) * 0.5

    def __len__(self):
        return self.numel()


def test_tensors_are_of_the_class_that_was_chosen(close):
    graph = GraphBuilder(tensor_class=Halved)
    x = graph.parameter(X_BUILDER)
    quotient = x / 4
    made = (x, graph.constant(2.0), quotient, graph.relu(x), torch.cat([x, x]))
    assert all(type(tensor) is Halved for tensor in made)
    assert len(x) == 24
    assert repr(x) == "Halved(shape=(2, 3, 4), dtype=float32)"
    given = torch.randn(X_BUILDER)
    close(graph.compile(quotient).run(given), given / 8)


def test_graphs_of_two_classes_do_not_mix():
    plain, halved = GraphBuilder(), GraphBuilder(tensor_class=Halved)
    with pytest.raises(GraphError, match="got two") as error:
        torch.add(plain.parameter(X_BUILDER), halved.parameter(X_BUILDER))
    assert error.value.code == "graph-mixed"


@pytest.mark.parametrize("wrong", [torch.Tensor, 3, None])
def test_another_class_of_tensors_is_refused(wrong):
    with pytest.raises(GraphError, match="must be a subclass of GraphTensor, got") as error:
        GraphBuilder(tensor_class=wrong)
    assert error.value.code == "graph-parameter"
    assert repr(wrong) in str(error.value)


def test_a_mask_beside_is_causal_is_refused():
    graph = GraphBuilder()
    x, mask = graph.parameter((1, 2, 4, 8)), graph.parameter((1, 1, 4, 4))
    with pytest.raises(LoweringError, match="a mask together with is_causal") as error:
        graph.compile(graph.scaled_dot_product_attention(x, x, x, mask, is_causal=True))
    assert error.value.code == "cannot-lower"


def test_an_output_may_be_an_input(close):
    graph = GraphBuilder()
    x = graph.parameter(X_BUILDER)
    given = torch.randn(X_BUILDER)
    close(graph.compile(x).run(given), given)


def test_linear_takes_its_weights_when_it_runs(close):
    graph = GraphBuilder()
    graph.linear(graph.parameter((2, 8)), 3, 8, bias=True)
    x, weight, bias = torch.randn(2, 8), torch.randn(3, 8), torch.randn(3)
    close(graph.run(x, weight, bias), F.linear(x, weight, bias))


def test_operators_and_torch_functions_build_the_graph(close):
    def function(x, y):
        z = (x @ y.T + 1) / 2 - x.mean() ** 2
        parts = torch.chunk(F.layer_norm(z, z.shape[-1:]), 2, dim=1)
        table = torch.where(z > 0, z, -z)[:, 1:].abs()
        return torch.cat([*parts, table], 1).masked_fill(torch.tensor([[True], [False]] * 2), 7)

    x, y = torch.randn(4, 5), torch.randn(6, 5)
    graph = GraphBuilder()
    result = function(graph.parameter((4, 5)), graph.parameter((6, 5)))
    assert (tuple(result.shape), result.dtype) == ((4, 11), torch.float32)
    close(graph.run(x, y), function(x, y))


def test_modules_and_writes_build_the_graph(close):
    layer = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.LayerNorm(8))

    def function(x):
        x[:, 0] = 3
        return layer(x).add_(1)

    x = torch.randn(2, 8)
    expected = function(x.clone())
    given = x.clone()
    graph = GraphBuilder()
    graph.compile(function(graph.parameter((2, 8))))
    close(graph.run(given), expected)
    assert torch.equal(given, x)


def test_graph_is_one_program():
    graph = GraphBuilder()
    x = graph.parameter((2, 8))
    with collecting() as records:
        (F.gelu(x) * 2).sum()
        graph.run(torch.randn(2, 8))
    assert records == []
    assert repr(graph) == "GraphBuilder(1 parameters, 4 tensors)"


def test_outputs_come_in_the_order_returned(close):
    x = torch.randn(2, 3)
    graph = GraphBuilder()
    given = graph.parameter((2, 3))
    first, second = given + 1, given * 2
    third = first.sum()
    close(graph.run(x), (x * 2, (x + 1).sum()))
    graph.compile(third, second, first)
    close(graph.run(x), ((x + 1).sum(), x * 2, x + 1))


def test_graph_that_grew_is_compiled_anew(close):
    x = torch.randn(3)
    graph = GraphBuilder()
    result = graph.parameter((3,)) + 1
    close(graph.run(x), x + 1)
    graph.exp(result)
    close(graph.run(x), (x + 1).exp())


def test_arrays_give_arrays_and_tensors_stay_on_their_device():
    graph = GraphBuilder()
    graph.parameter((2,), np.float32) + graph.constant([1, 2])
    array = graph.run(np.ones(2, np.float32))
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [2, 3]
    assert graph(torch.ones(2, device="npu")).device.type == "npu"


@pytest.mark.parametrize("dtype, bound", [("bfloat16", 1e-2), ("int8", 1e-2), ("int4", 0.1)])
def test_options_are_those_of_compile(dtype, bound):
    x, weight = torch.randn(4, 128), torch.randn(96, 128)
    graph = GraphBuilder(dtype=dtype)
    graph.matmul(graph.parameter((4, 128)), graph.constant(weight))
    expected = x @ weight.T
    is_exact = dtype == "bfloat16" and "BF16" not in npu_runtime.device_info().capabilities
    error = float((graph.run(x) - expected).norm() / expected.norm())
    assert error < 1e-5 if is_exact else 1e-5 < error < bound


def test_properties_reach_the_device():
    graph = GraphBuilder(device_options={"PERF_COUNT": "YES"})
    graph.parameter((2, 3)).exp()
    graph.compile()
    assert graph._program.get_property("PERF_COUNT") == "YES"


def test_graph_is_a_module_for_the_other_doors(tmp_path, close):
    graph = GraphBuilder()
    graph.parameter((2, 3)).softmax(-1) + graph.constant(np.ones(3, np.float32))
    x = torch.randn(2, 3)
    path = npu_compiler.export(graph.to_module(), (x,), tmp_path / "graph")
    close(npu_compiler.load(path)(x), x.softmax(-1) + 1)


def test_graph_is_a_model_of_openvino(close):
    graph = GraphBuilder()
    x = graph.parameter((2, 3))
    halves = x / 2
    x.exp()
    model = graph.to_openvino(halves)
    assert [list(port.shape) for port in (*model.inputs, *model.outputs)] == [[2, 3], [2, 3]]
    given = torch.randn(2, 3)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    (found,) = openvino_core().compile_model(model, "CPU", options)([given.numpy()]).values()
    close(torch.from_numpy(found), given / 2)


def build(step):
    graph = GraphBuilder()
    return step(graph, graph.parameter((2, 3)))


@pytest.mark.parametrize(
    "step, code, text",
    [
        (lambda g, x: g.matmul(x, g.parameter((4, 5))), "graph-op", "(2, 3) float32, (5, 4)"),
        (lambda g, x: x.reshape(5), "graph-op", "reshape"),
        (lambda g, x: g.concat(x, x, axis=7), "graph-op", "cat"),
        (lambda g, x: g.slice(x, (0,), (1, 2)), "graph-op", "got 1, 2 and 1"),
        (lambda g, x: x[5], "graph-op", "__getitem__"),
        (lambda g, x: float(x.sum()), "graph-value", "got __float__"),
        (lambda g, x: 1 if x.sum() > 0 else 2, "graph-value", "got __bool__"),
        (lambda g, x: x.numpy(), "graph-value", "got numpy"),
        (lambda g, x: x.nonzero(), "graph-value", "got nonzero"),
        (lambda g, x: x + GraphBuilder().parameter((2, 3)), "graph-mixed", "got two"),
        (lambda g, x: g.parameter((2, -1)), "graph-parameter", "(2, -1)"),
        (lambda g, x: g.parameter((2,), "float3"), "graph-parameter", "'float3'"),
        (lambda g, x: g.constant("text"), "graph-parameter", "got str"),
        (
            lambda g, x: g.parameter((2,), torch.int4),
            "graph-parameter",
            'GraphBuilder(dtype="int4")',
        ),
        (lambda g, x: g.parameter((2,), "complex64"), "graph-parameter", "got torch.complex64"),
        (lambda g, x: g.parameter((2,), "float64"), "graph-parameter", "got torch.float64"),
        (lambda g, x: g.constant(np.ones(2, np.uint16)), "graph-parameter", "got torch.uint16"),
        (lambda g, x: g.gather(x, [0], axis=2), "graph-op", "`axes` must be from -2 to 1, got 2"),
        (lambda g, x: g.unsqueeze(x, -4), "graph-op", "from -3 to 2, got -4"),
        (lambda g, x: g.unsqueeze(x, (0, -4)), "graph-op", "got (0, -4)"),
        (
            lambda g, x: g.reduce_mean(x, torch.zeros(1, dtype=torch.int64).expand(2**40)),
            "graph-op",
            "at most 2 axes, got 1099511627776",
        ),
        (lambda g, x: g.reduce_prod(x, 2), "graph-op", "from -2 to 1, got 2"),
        (lambda g, x: g.reduce_prod(x, (0, -2)), "graph-op", "got (0, -2)"),
        (lambda g, x: g.compile(), "graph-output", "got none"),
        (lambda g, x: g.compile(torch.ones(2)), "graph-output", "got Tensor"),
        (lambda g, x: (x + 1) is None or g.run(), "graph-input", "(1), got 0"),
    ],
)
def test_what_does_not_fit_is_an_error(step, code, text):
    with pytest.raises(GraphError) as error:
        build(step)
    assert error.value.code == code
    assert text in str(error.value)


def test_input_of_another_shape_is_an_error():
    graph = GraphBuilder()
    graph.parameter((2, 3)) + 1
    with pytest.raises(ValueError, match=r"\[program-input\]"):
        graph.run(torch.ones(3, 2))


@pytest.mark.parametrize(
    "call, shape, dtype, code, reason",
    [
        (torch.linalg.qr, (3, 3), "float32", "no-converter", "linalg_qr"),
        (lambda x: torch.atan2(x, x), (3,), "float32", "cannot-lower", "no counterpart"),
        (lambda x: x * 100, (3,), "int8", "cannot-lower", "would not wrap around"),
        (
            lambda x: x + torch.ones(3).double(),
            (3,),
            "float32",
            "cannot-lower",
            "float64 would be computed",
        ),
    ],
)
def test_call_that_no_program_has_is_refused_with_advice_for_graphs(
    call, shape, dtype, code, reason
):
    graph = GraphBuilder()
    call(graph.parameter(shape, dtype))
    with pytest.raises(LoweringError) as error:
        graph.compile()
    assert error.value.code == code
    assert reason in str(error.value)
    assert "make the result a parameter" in str(error.value)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda x: x.contiguous(), id="contiguous"),
        pytest.param(lambda x: x.to(torch.float32), id="to"),
        pytest.param(lambda x: F.dropout(x, training=False), id="dropout"),
        pytest.param(lambda x: torch.broadcast_tensors(x, x)[1], id="broadcast"),
    ],
)
def test_call_that_returns_its_argument_is_a_result(call):
    x = torch.randn(2, 3)
    graph = GraphBuilder()
    call(graph.parameter((2, 3)))
    result = graph.run(x)
    assert torch.equal(result, x)
    assert result.data_ptr() != x.data_ptr()


def test_call_that_writes_to_a_parameter_is_a_result(close):
    x = torch.randn(2, 3)
    graph = GraphBuilder()
    graph.parameter((2, 3)).add_(1)
    close(graph.run(x), x + 1)


def test_argument_that_a_call_returned_and_another_reads_is_no_result(close):
    x = torch.randn(2, 3)
    graph = GraphBuilder()
    graph.parameter((2, 3)).contiguous() * 2
    close(graph.run(x), x * 2)


def test_what_an_npu_would_refuse_is_an_equal_form(on_npu):
    def selects(**options):
        graph = GraphBuilder(**options)
        x = graph.parameter((5,))
        torch.where(x > 0, x > 1, x < -1)
        kinds = [node.get_type_name() for node in graph.to_openvino().get_ops()]
        values = torch.tensor([torch.nan, torch.inf, -2.0, 0.0, 3.0])
        assert graph.run(values).tolist() == [False, True, True, False, True]
        return "Select" in kinds

    assert [selects(target="openvino"), selects(target="NPU"), selects()] == [
        True, False, not on_npu
    ]  # fmt: skip

"""npu_compiler.compile: the module stays itself, and its calls run programs."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import npu_compiler
from npu_compiler import CompilerConfig
from npu_compiler.errors import OptionError
from npu_compiler.graph_compiler.records import collecting


def relative_error(result, expected) -> float:
    return float((result - expected).detach().norm() / expected.detach().norm())


class ConvNet(nn.Module):
    """The layers of the MNIST example, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc1 = nn.Linear(16 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), dim=1)


def test_single_linear_is_compiled_in_place():
    layer = nn.Linear(16, 8)
    x = torch.randn(4, 16)
    expected = layer(x)
    with collecting() as records:
        assert npu_compiler.compile(layer) is layer
        result = layer(x)
    (record,) = records
    assert record.kind == "inference"
    assert len(record.programs) == 1
    assert type(layer) is nn.Linear
    assert relative_error(result, expected) < 1e-6


def test_parameters_and_state_dict_stay():
    model = ConvNet()
    before = dict(model.named_parameters())
    names = list(model.state_dict())
    npu_compiler.compile(model, dtype=torch.float16)
    model(torch.randn(2, 1, 12, 12))
    assert list(model.state_dict()) == names
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())


def test_inference_takes_no_gradient_and_is_in_evaluation_mode():
    model = npu_compiler.compile(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)).train())
    x = torch.ones(2, 4)
    assert not model.training
    assert not model(x).requires_grad
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    "dtype, precision, bound",
    [
        (torch.float32, "float32", 1e-6),
        (torch.bfloat16, "bfloat16", 1e-2),
        ("float16", "float16", 2e-3),
    ],
    ids=str,
)
def test_dtype_is_the_precision_of_the_program(dtype, precision, bound):
    layer = nn.Linear(64, 32)
    x = torch.randn(4, 64)
    expected = layer(x)
    npu_compiler.compile(layer, CompilerConfig(dtype=dtype))
    with collecting() as records:
        result = layer(x)
    assert records[0].programs[0].precision == precision
    assert result.dtype is torch.float32
    assert relative_error(result, expected) < bound


@pytest.mark.parametrize(
    "options, bound, device",
    [
        ({"dtype": torch.int8}, 0.01, "npu"),
        ({"dtype": "int8", "symmetric": True}, 0.01, "cpu"),
        ({"dtype": "int4", "group_size": 32}, 0.1, "npu"),
        ({"dtype": "int4", "precision": "bfloat16"}, 0.1, "cpu"),
    ],
    ids=str,
)
def test_integer_dtype_compresses_the_weights(options, bound, device):
    layer = nn.Linear(128, 96).to(device)
    x = torch.randn(5, 128, device=device)
    expected = layer(x)
    npu_compiler.compile(layer, **options)
    with collecting() as records:
        result = layer(x)
    program = records[0].programs[0]
    (weight,) = program.compression.weights
    assert weight.mode == str(options["dtype"]).removeprefix("torch.")
    assert weight.group_size == options.get("group_size", 64 if weight.mode == "int4" else None)
    assert program.precision == options.get("precision", "float32")
    assert result.device.type == device
    assert 1e-4 < relative_error(result, expected) < bound


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_weights_changed_later_take_effect(dtype):
    layer = npu_compiler.compile(nn.Linear(64, 64), dtype=dtype)
    x = torch.randn(3, 64)
    layer(x)
    other = nn.Linear(64, 64)
    layer.load_state_dict(other.state_dict())
    assert relative_error(layer(x), other(x)) < 0.02
    with torch.no_grad():
        layer.weight.mul_(-2)
        other.weight.mul_(-2)
    assert relative_error(layer(x), other(x)) < 0.02


def test_another_config_compiles_anew():
    layer = nn.Linear(64, 64)
    x = torch.randn(3, 64)
    with collecting() as records:
        for dtype in ("float32", "bfloat16", "int4"):
            npu_compiler.compile(layer, dtype=dtype)
            layer(x)
            layer(x)
    assert [record.programs[0].precision for record in records] == [
        "float32",
        "bfloat16",
        "float32",
    ]
    assert [bool(record.programs[0].compression) for record in records] == [False, False, True]


def test_many_modules_of_one_class_are_all_compiled():
    layers = [npu_compiler.compile(nn.Linear(8, 8)) for _ in range(9)]  # one above dynamo's limit
    with collecting() as records:
        for layer in layers:
            layer(torch.randn(2, 8))
    assert len(records) == 9


def test_copies_and_files_hold_the_plain_module():
    layer = npu_compiler.compile(nn.Linear(8, 4))
    x = torch.randn(2, 8)
    expected = layer(x)
    twin = copy.deepcopy(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for plain in (twin, torch.load(file, weights_only=False)):
        assert plain(x).requires_grad
        assert relative_error(plain(x), expected) < 1e-6


def test_hooks_still_run():
    layer = nn.Linear(8, 4)
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    x = torch.randn(2, 8)
    expected = layer(x)
    assert relative_error(npu_compiler.compile(layer)(x), expected) < 1e-6


def test_graph_breaks_are_survived():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    model = Broken()
    x = torch.randn(2, 8)
    expected = model(x)
    npu_compiler.compile(model)
    with collecting() as records:
        result = model(x)
    assert [record.kind for record in records] == ["inference", "inference"]
    assert relative_error(result, expected) < 1e-6


def test_use_to_takes_inputs_of_the_cpu_and_answers_there():
    layer = nn.Linear(8, 4)
    x = torch.randn(2, 8)
    expected = layer(x).detach()
    npu_compiler.compile(layer, npu_compiler.CompilerConfig(use_to=True))
    assert layer(x).device.type == "cpu"
    torch.testing.assert_close(layer(x), expected)
    assert layer(x.to("npu")).device.type == "npu"


@pytest.mark.parametrize("dtype", [npu_compiler.int8, npu_compiler.int4])
def test_dtypes_have_the_old_librarys_names(dtype):
    assert npu_compiler.CompilerConfig(dtype=dtype).compression == dtype


def test_inputs_that_the_model_refuses_are_named_without_a_trace(caplog):
    layer = npu_compiler.compile(nn.Linear(8, 4))
    layer(torch.ones(2, 8))
    with pytest.raises(npu_compiler.ModelInputError, match="Linear: an operator rejects") as caught:
        layer(torch.ones(2, 9))
    assert caught.value.code == "refused-input"
    assert isinstance(caught.value, RuntimeError)
    assert "Got float32 (2, 9). Pass inputs" in str(caught.value)
    assert not caplog.records
    assert layer(torch.ones(3, 8)).shape == (3, 4)


def test_use_to_moves_the_module():
    layer = npu_compiler.compile(nn.Linear(8, 4), use_to=True)
    assert layer.weight.device.type == "npu"
    assert layer(torch.randn(2, 8, device="npu")).device.type == "npu"


def test_dynamic_serves_all_sizes_with_one_graph(on_npu):
    layer = npu_compiler.compile(nn.Linear(8, 4), dynamic=True)
    with collecting() as records:
        for batch in (3, 5, 7):
            assert layer(torch.randn(batch, 8)).shape == (batch, 4)
    assert len(records) == (2 if on_npu else 1)  # 5 and 7 are of one bucket of an NPU


def test_strict_makes_a_fallback_an_error():
    class Model(nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x @ x)[0] @ x

    model = npu_compiler.compile(Model(), strict=True)
    with pytest.raises(Exception, match=r"linalg_qr.*\[no-converter\]"):
        model(torch.randn(4, 4))


def test_training_follows_eager():
    torch.manual_seed(1)
    model, plain = ConvNet(), ConvNet()
    plain.load_state_dict(model.state_dict())
    plain.train()
    npu_compiler.compile(model, CompilerConfig(training=True))
    assert model.training
    x, target = torch.randn(16, 1, 12, 12), torch.randint(0, 10, (16,))
    losses = []
    with collecting() as records:
        for net in (model, plain):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
            losses.append([])
            for _ in range(4):
                optimizer.zero_grad()
                loss = F.nll_loss(net(x), target)
                loss.backward()
                optimizer.step()
                losses[-1].append(float(loss.detach()))
    assert {record.kind for record in records} == {"forward", "backward"}
    assert losses[0][-1] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert torch.allclose(model.norm.running_mean, plain.norm.running_mean, atol=1e-5)


def test_training_keeps_weights_as_inputs_when_it_is_validated():
    model = npu_compiler.compile(nn.Linear(8, 8), training=True)
    x = torch.randn(2, 8)
    with torch.no_grad(), collecting() as records:
        model(x)
        model.weight.mul_(3)
        result = model(x)
    (record,) = records
    assert (record.kind, record.frozen_count) == ("inference", 0)
    assert relative_error(result, F.linear(x, model.weight, model.bias)) < 1e-6


def test_explain_takes_the_options_of_the_module():
    layer = npu_compiler.compile(nn.Linear(128, 64), dtype="int4")
    explanation = npu_compiler.explain(layer, torch.randn(2, 128))
    assert explanation.program_count == 1
    assert "float32, weights int4" in str(explanation)
    assert '"relative_error"' in explanation.to_json()


@pytest.mark.parametrize(
    "call, code, text",
    [
        (lambda: npu_compiler.compile(torch.relu), "compile-module", "builtin_function"),
        (
            lambda: npu_compiler.compile(torch.compile(nn.ReLU(), backend="eager")),
            "compile-module",
            "torch.compile",
        ),
        (lambda: npu_compiler.compile(nn.ReLU(), {"dtype": "int8"}), "option-value", "got dict"),
        (lambda: npu_compiler.compile(nn.ReLU(), dtyp="int8"), "unknown-option", "'dtype'"),
        (
            lambda: npu_compiler.compile(nn.ReLU(), CompilerConfig(), strict=True),
            "option-conflict",
            "by name strict",
        ),
    ],
)
def test_wrong_call_is_a_readable_error(call, code, text):
    with pytest.raises(OptionError) as error:
        call()
    assert error.value.code == code
    assert text in str(error.value)

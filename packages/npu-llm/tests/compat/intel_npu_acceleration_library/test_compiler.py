"""compile and CompilerConfig of intel-npu-acceleration-library."""

import copy

import pytest
import torch

from npu_llm.compat.intel_npu_acceleration_library import int4, int8
from npu_llm.compat.intel_npu_acceleration_library.compiler import (
    CompilerConfig,
    compile,  # noqa: A004  # that library's name
)
from npu_llm.compat.intel_npu_acceleration_library.nn import Conv2d, Linear, QuantizedLinear
from npu_llm.compat.intel_npu_acceleration_library.nn.layers import NPUModuleWrapper
from npu_llm.errors import OptionError


def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))


X = torch.randn(6, 48)


@pytest.mark.parametrize(
    "dtype, kind, stored, error",
    [
        (torch.float16, Linear, torch.float16, 0.002),
        (torch.int8, QuantizedLinear, torch.int8, 0.01),
        (int8, QuantizedLinear, torch.int8, 0.01),
        (int4, QuantizedLinear, torch.uint8, 0.15),
    ],
    ids=str,
)
def test_layers_become_those_of_the_dtype_with_torchs_results(dtype, kind, stored, error):
    model = small()
    expected = model(X).detach()
    compiled = compile(model, CompilerConfig(dtype=dtype))
    assert compiled is model
    assert type(model[0]) is type(model[2]) is kind
    assert model[0].weight.dtype == stored
    result = model(X)
    assert result.dtype == X.dtype
    assert not model.training
    assert (result - expected).abs().max() < error * expected.abs().max()


def test_the_default_is_float16_and_other_float_dtypes_compute_so_too():
    assert CompilerConfig() == CompilerConfig(use_to=False, dtype=torch.float16, training=False)
    with pytest.warns(UserWarning, match="float16"):
        model = compile(small(), dtype=torch.bfloat16)
    assert model[0].weight.dtype == torch.float16


def test_a_shared_layer_stays_shared_and_a_single_one_is_answered():
    layer = torch.nn.Linear(8, 8)
    model = compile(torch.nn.Sequential(layer, layer))
    assert model[0] is model[1]
    assert type(compile(layer)) is Linear


def test_layers_of_subclasses_and_unusual_padding_stay_torchs():
    model = torch.nn.Sequential(
        torch.nn.MultiheadAttention(8, 2),
        torch.nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        torch.nn.Conv2d(4, 4, 3, padding="same"),
    )
    before = [type(one) for one in model.modules()]
    assert [type(one) for one in compile(model).modules()] == before


@pytest.mark.parametrize("groups, stride", [(1, 1), (2, 2), (4, 1)])
def test_convolutions_give_torchs_results(groups, stride):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, stride=stride, groups=groups, padding=1))
    x = torch.randn(2, 4, 10, 9)
    expected = model(x).detach()
    assert type(compile(model)[0]) is Conv2d
    torch.testing.assert_close(model(x), expected, atol=0.005, rtol=0.005)


def test_a_training_step_changes_the_model_as_torchs_does():
    ours, theirs = small().half(), small().half()
    compile(ours, CompilerConfig(training=True))
    assert ours.training
    x, target = X.half(), torch.randn(6, 16).half()
    before = ours.eval()(x)
    for model in (ours, theirs):
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), target).backward()
            optimizer.step()
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=0.002, rtol=0.01)
    after = ours.eval()(x)  # not with the weights of the first evaluation
    torch.testing.assert_close(after, theirs.eval()(x).detach(), atol=0.01, rtol=0.01)
    assert (after - before).abs().max() > 0.05


def test_integers_do_not_train():
    model = compile(small(), CompilerConfig(dtype=int8, training=True))
    assert not model.training
    with pytest.raises(OptionError) as caught:
        model.train()(X)
    assert caught.value.code == "quantized-training"


@pytest.mark.parametrize("dtype, error", [(torch.float16, 1e-3), (int8, 0.02), (int4, 0.15)])
def test_use_to_compiles_the_model_as_a_whole(dtype, error):
    model = small()
    expected = copy.deepcopy(model)(X).detach()
    whole = compile(model, CompilerConfig(use_to=True, dtype=dtype))
    assert isinstance(whole, NPUModuleWrapper)
    result = whole(X)
    assert not result.requires_grad
    assert (result - expected).abs().max() < error * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.int32, "int8", None])
def test_a_dtype_that_layers_cannot_have_is_refused(dtype):
    with pytest.raises(OptionError) as caught:
        compile(small(), CompilerConfig(dtype=dtype))
    assert caught.value.code == "unknown-dtype"


@pytest.mark.parametrize(
    "model, config, options",
    [
        ("model", None, {}),
        (torch.relu, None, {}),
        (torch.nn.Linear(2, 2), {"dtype": int8}, {}),
        (torch.nn.Linear(2, 2), None, {"quantize": True}),
    ],
)
def test_other_arguments_are_refused(model, config, options):
    with pytest.raises(OptionError, match=r"^compile: ") as error:
        compile(model, config, **options)
    assert error.value.code == "compat-argument"


def test_a_dtype_may_stand_for_a_configuration():
    assert type(compile(torch.nn.Linear(4, 2), torch.int8)) is QuantizedLinear


def test_under_int4_a_layer_with_an_odd_number_of_inputs_is_int8():
    layer = torch.nn.Linear(5, 3)
    x = torch.randn(2, 5)
    expected = layer(x).detach()
    compiled = compile(layer, CompilerConfig(dtype=int4))
    assert compiled.weight.dtype == torch.int8
    torch.testing.assert_close(compiled(x), expected, atol=0.05, rtol=0.02)


def test_a_convolution_takes_one_image_without_the_batch():
    layer, x = torch.nn.Conv2d(3, 4, 3), torch.randn(3, 8, 8)
    expected = layer(x).detach()
    torch.testing.assert_close(compile(layer)(x), expected, atol=0.01, rtol=0.01)

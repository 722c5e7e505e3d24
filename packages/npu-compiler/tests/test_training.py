"""Every type of layer trains compiled: results and gradients are eager's, in float32 and autocast.

Layers are compiled side by side as one model, and compared each by itself.

Whole models, and losses over steps, are in test_models.py, test_backend.py and
benchmarks/training.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Self attention, of which only the result is taken."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


class First(nn.Module):
    """The first result of a module with several."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@dataclass(frozen=True)
class Layer:
    """A layer to be trained, and its input."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    integers: int = 0

    def inputs(self):
        if self.integers:
            return torch.randint(0, self.integers, self.shape)
        return torch.randn(*self.shape)


LAYERS = {
    "linear": Layer(lambda: nn.Linear(6, 5), (3, 6)),
    "conv1d": Layer(lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "conv2d": Layer(lambda: nn.Conv2d(4, 6, 3, stride=2), (2, 4, 9, 9)),
    "grouped conv2d": Layer(lambda: nn.Conv2d(4, 8, 3, groups=2, dilation=2), (2, 4, 9, 9)),
    "conv3d": Layer(lambda: nn.Conv3d(2, 3, 3), (2, 2, 5, 6, 7)),
    "transposed conv1d": Layer(lambda: nn.ConvTranspose1d(4, 3, 3, stride=2), (2, 4, 6)),
    "transposed conv2d": Layer(lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), (2, 4, 5, 5)),
    "batch norm 1d": Layer(lambda: nn.BatchNorm1d(5), (4, 5, 3)),
    "batch norm 2d": Layer(lambda: nn.BatchNorm2d(5), (4, 5, 3, 3)),
    "instance norm": Layer(lambda: nn.InstanceNorm2d(4, affine=True), (2, 4, 5, 5)),
    "layer norm": Layer(lambda: nn.LayerNorm(7), (3, 4, 7)),
    "group norm": Layer(lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "rms norm": Layer(lambda: nn.RMSNorm(7), (3, 4, 7)),
    "embedding": Layer(lambda: nn.Embedding(11, 4), (3, 5), integers=11),
    "padded embedding": Layer(lambda: nn.Embedding(11, 4, padding_idx=2), (3, 5), integers=11),
    "attention": Layer(Attention, (2, 5, 8)),
    "encoder layer": Layer(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)
    ),
    "lstm": Layer(lambda: First(nn.LSTM(4, 5, batch_first=True)), (2, 3, 4)),
    "gru": Layer(lambda: First(nn.GRU(4, 5, batch_first=True)), (2, 3, 4)),
    "prelu": Layer(lambda: nn.PReLU(), (3, 4)),
}

RECURRENT = ("lstm", "gru")

# Pooling and activations have no weights: a convolution in front of them has.
AFTER_CONVOLUTION = {
    "max pool": nn.MaxPool2d(2),
    "overlapping max pool": nn.MaxPool2d(3, 2, padding=1),
    "average pool": nn.AvgPool2d(2),
    "adaptive average pool": nn.AdaptiveAvgPool2d(2),
    "global pool": nn.AdaptiveAvgPool2d(1),
    "nearest upsample": nn.Upsample(scale_factor=2),
    "bilinear upsample": nn.Upsample(scale_factor=2, mode="bilinear"),
    "relu": nn.ReLU(),
    "leaky relu": nn.LeakyReLU(),
    "elu": nn.ELU(),
    "gelu": nn.GELU(),
    "tanh gelu": nn.GELU("tanh"),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "hardswish": nn.Hardswish(),
    "hardsigmoid": nn.Hardsigmoid(),
    "softplus": nn.Softplus(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "softmax": nn.Softmax(1),
    "log softmax": nn.LogSoftmax(1),
}

LOSSES = {
    "cross entropy": lambda x: F.cross_entropy(x, torch.tensor([1, 0, 4])),
    "smoothed cross entropy": lambda x: F.cross_entropy(
        x, torch.tensor([1, 0, 4]), label_smoothing=0.1
    ),
    "ignored targets": lambda x: F.cross_entropy(x, torch.tensor([1, -100, 4])),
    "nll": lambda x: F.nll_loss(F.log_softmax(x, 1), torch.tensor([1, 0, 4])),
    "mse": lambda x: F.mse_loss(x, torch.ones(3, 5)),
    "l1": lambda x: F.l1_loss(x, torch.ones(3, 5)),
    "smooth l1": lambda x: F.smooth_l1_loss(x, torch.ones(3, 5)),
    "huber": lambda x: F.huber_loss(x, torch.ones(3, 5)),
    "binary with logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(3, 5)),
    "binary": lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones(3, 5)),
    "kl": lambda x: F.kl_div(F.log_softmax(x, 1), torch.full((3, 5), 0.2), reduction="batchmean"),
    "cosine": lambda x: F.cosine_embedding_loss(x, x.detach() + 1, torch.ones(3)),
}


class Together(nn.Module):
    """Models side by side, each with a separate input and output, as one model."""

    def __init__(self, models):
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *inputs):
        return [model(x) for model, x in zip(self.models, inputs, strict=True)]


def weighted(output):
    weights = torch.linspace(-1, 2, output.numel()).reshape(output.shape)
    return (output * weights).sum()


def step(together, inputs, loss):
    """The output and the gradients of each model, by parameter and input."""
    together.zero_grad()
    given = [x.clone().requires_grad_(x.dtype.is_floating_point) for x in inputs]
    outputs = together(*given)
    sum(loss(output.float()) for output in outputs).backward()
    return [
        (output.detach(), [p.grad.clone() for p in (*model.parameters(), x) if p.requires_grad])
        for model, x, output in zip(together.models, given, outputs, strict=True)
    ]


def differences(found, expected):
    """Largest difference per tensor; some gradients are zero but for rounding."""
    largest = max(float(x.abs().max()) for x in expected)
    return [
        float((a.float() - b.float()).abs().max()) / max(float(b.abs().max()), 1e-3 * largest)
        for a, b in zip(found, expected, strict=True)
    ]


def check(compiled, models, inputs, loss=weighted, *, autocast=False):
    """Compiles models by name as one, trains a step, and compares each with eager by itself."""
    ours = Together(models.values()).train()
    reference = copy.deepcopy(ours)
    fast = compiled(ours)
    expected = step(reference, inputs, loss)
    theirs = expected
    if autocast:
        with torch.autocast("cpu", torch.bfloat16):
            theirs = step(reference, inputs, loss)
            found = step(fast.function, inputs, loss)
    else:
        found = step(fast.function, inputs, loss)
    faults = []
    for name, mine, half, full in zip(models, found, theirs, expected, strict=True):
        if autocast:
            error = max(differences(mine[1], full[1]))
            bound = 2 * max(differences(half[1], full[1])) + 2e-2
        else:
            error, bound = max(differences([mine[0], *mine[1]], [full[0], *full[1]])), 1e-4
        if mine[0].dtype is not half[0].dtype or not error <= bound:
            faults.append(f"{name}: {mine[0].dtype}, off by {error:.1e} of {bound:.1e}")
    assert not faults, "\n".join(faults)
    if not autocast:
        for mine, theirs in zip(ours.buffers(), reference.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs)
    return fast


def assert_trained_by_programs(fast):
    kinds = {record.kind for record in fast.records if record.programs}
    assert kinds == {"forward", "backward"}


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_layers_train(compiled, autocast):
    layers = {name: layer for name, layer in LAYERS.items() if name not in RECURRENT}
    models = {name: layer.make() for name, layer in layers.items()}
    inputs = [layer.inputs() for layer in layers.values()]
    assert_trained_by_programs(check(compiled, models, inputs, autocast=autocast))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_which_torch_does_not_trace_train_eagerly(compiled, name, autocast):
    if name == "lstm" and autocast and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch's own LSTM has no bfloat16 kernel on this processor")
    layer = LAYERS[name]
    fast = check(compiled, {name: layer.make()}, [layer.inputs()], autocast=autocast)
    assert fast.records == []


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_layers_without_weights_train(compiled, autocast):
    models = {
        name: nn.Sequential(nn.Conv2d(3, 4, 3), layer) for name, layer in AFTER_CONVOLUTION.items()
    }
    inputs = [torch.randn(2, 3, 10, 10) for _ in models]
    assert_trained_by_programs(check(compiled, models, inputs, autocast=autocast))


class WithLoss(nn.Module):
    """A layer and a loss of its result."""

    def __init__(self, loss):
        super().__init__()
        self.layer, self.loss = nn.Linear(6, 5), loss

    def forward(self, x):
        return self.loss(self.layer(x))


def test_losses_train(compiled):
    models = {name: WithLoss(loss) for name, loss in LOSSES.items()}
    inputs = [torch.randn(3, 6) for _ in models]
    assert_trained_by_programs(check(compiled, models, inputs, lambda loss: loss))

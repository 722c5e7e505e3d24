"""Measures training steps: losses of compiled and eager steps, and the ratio of their times.

Run from the root of the repository, on an idle machine:

    python packages/npu-compiler/benchmarks/training.py --steps 20

`--models mnist --steps 5` is a short run. The models have random weights and random data: a
convolutional net for images of MNIST's size, ResNet-50, BERT with a classifier, and nets of three
convolutions with max pooling and bilinear resizing, of fixed and of varying sizes; SGD in float32.
Both sides start from the same weights and get the same batches. "difference" is the largest
relative difference of the losses. Steps of both sides alternate, so that changes of the machine's
speed affect both; the figure is the median without the first steps, which compile.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

warnings.simplefilter("ignore")

import transformers as tf  # noqa: E402

Batch = dict[str, torch.Tensor]
_TASK = "single_label_classification"  # otherwise the first step sets it, and recompiles
Model = tuple[nn.Module, Callable[[], Batch], float]


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        return F.cross_entropy(self.classifier(self.features(images)), labels)


class Resized(nn.Module):
    """Three convolutions, with max pooling ("pool") or resizing ("resize") after the first two."""

    def __init__(self, *changes: str) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1)
            for before, after in ((3, 16), (16, 32), (32, 32))
        )
        self.classifier = nn.Linear(32, 10)
        self._changes = (*changes, "")

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        for convolution, change in zip(self.convolutions, self._changes, strict=True):
            images = F.relu(convolution(images))
            if change == "pool":
                images = F.max_pool2d(images, 2)
            elif change == "resize":
                images = F.interpolate(images, scale_factor=2.0, mode="bilinear")
        return F.cross_entropy(self.classifier(images.mean((2, 3))), labels)


class Classified(nn.Module):
    """A transformers model with labels, which returns its loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        loss: torch.Tensor = self.inner(**batch).loss
        return loss


def _mnist() -> Model:
    def batch() -> Batch:
        return {"images": torch.randn(64, 1, 28, 28), "labels": torch.randint(0, 10, (64,))}

    return Net(), batch, 0.01


def _resnet50() -> Model:
    def batch() -> Batch:
        return {"pixel_values": torch.randn(8, 3, 224, 224), "labels": torch.randint(0, 9, (8,))}

    model = tf.ResNetForImageClassification(tf.ResNetConfig(num_labels=10, problem_type=_TASK))
    # Each block starts as the identity (Goyal et al., 2017, section 5.1). Without it random weights
    # amplify rounding: eager's losses in float32 and float64 are 1e-2 apart after three steps.
    for name, module in model.named_modules():
        if name.endswith("layer.2.normalization"):
            nn.init.zeros_(module.weight)
    return Classified(model), batch, 0.001


def _bert() -> Model:
    def batch() -> Batch:
        return {
            "input_ids": torch.randint(5, 999, (8, 128)),
            "attention_mask": torch.ones(8, 128, dtype=torch.long),
            "labels": torch.randint(0, 2, (8,)),
        }

    config = tf.BertConfig(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, problem_type=_TASK
    )
    return Classified(tf.BertForSequenceClassification(config)), batch, 0.001


def _resized(
    *changes: str, size: int, batch_varies: bool = False, sizes_vary: bool = False
) -> Model:
    def batch() -> Batch:
        count = random.choice((8, 12, 16)) if batch_varies else 12
        sides = (size - 8, size, size + 8) if sizes_vary else (size,)
        images = torch.randn(count, 3, random.choice(sides), random.choice(sides))
        return {"images": images, "labels": torch.randint(0, 10, (count,))}

    return Resized(*changes), batch, 0.01


MODELS: dict[str, Callable[[], Model]] = {
    "mnist": _mnist,
    "resnet50": _resnet50,
    "bert": _bert,
    "pool": partial(_resized, "pool", "pool", size=64),
    "pool_batch": partial(_resized, "pool", "pool", size=64, batch_varies=True),
    "pool_sizes": partial(_resized, "pool", "pool", size=64, sizes_vary=True),
    "resize": partial(_resized, "resize", "", size=32),
    "resize_batch": partial(_resized, "resize", "", size=32, batch_varies=True),
    "pool_resize": partial(_resized, "pool", "resize", size=64),
}


class Side:
    """A model in training, eager or compiled."""

    def __init__(self, model: nn.Module, rate: float, *, is_compiled: bool) -> None:
        self.losses: list[float] = []
        self.times: list[float] = []
        self._call: Any = torch.compile(model, backend="npu") if is_compiled else model
        self._optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def step(self, batch: Batch) -> None:
        """Runs one step: forward, backward, update."""
        started = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._call(**batch)
        loss.backward()
        self._optimizer.step()
        self.losses.append(float(loss))
        self.times.append(time.perf_counter() - started)


def run(name: str, steps: int) -> Iterator[str]:
    """Trains one model on both sides and prints the comparison."""
    torch.manual_seed(0)
    random.seed(0)
    torch._dynamo.reset()
    model, batch, rate = MODELS[name]()
    model.train()
    eager = Side(copy.deepcopy(model), rate, is_compiled=False)
    ours = Side(model, rate, is_compiled=True)
    for _ in range(steps):
        given = batch()
        eager.step(given)
        ours.step(given)
    difference = max(
        abs(a - b) / max(abs(b), 1e-12) for a, b in zip(ours.losses, eager.losses, strict=True)
    )
    theirs, mine = (statistics.median(side.times[steps // 4 or 1 :]) for side in (eager, ours))
    yield (
        f"{name:12} {steps:5} {eager.losses[0]:9.4f} {eager.losses[-1]:9.4f} {difference:11.1e} "
        f"{1e3 * theirs:9.1f} {mine / theirs:12.2f} {ours.times[0] / theirs:12.1f}"
    )


def main() -> None:
    """Prints one row per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--steps", type=int, default=20, help="at least 2; the first quarter compiles"
    )
    arguments = parser.parse_args()
    print(
        "model        steps  first loss last loss difference  eager ms  step / eager  first / eager"
    )
    for name in arguments.models.split(","):
        for row in run(name, max(arguments.steps, 2)):
            print(row, flush=True)


if __name__ == "__main__":
    main()

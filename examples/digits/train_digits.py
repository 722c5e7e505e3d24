"""Trains a convolutional net on handwritten digits, compiled for the npu and eagerly.

    python examples/digits/train_digits.py [--epochs 8] [--device npu]

The 1,797 images of 8 x 8 pixels come with scikit-learn, so that nothing is downloaded. Both nets
start from the same weights and see the same batches; the share of right answers on the images that
were kept back is printed for each.
"""

from __future__ import annotations

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn

import npu_compiler
from npu_compiler import CompilerConfig

BATCH = 64


class Net(nn.Module):
    """Two convolutions, pooling, dropout, two linear layers: images (batch, 1, 8, 8) to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, 10)."""
        return self.classifier(self.features(images))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (1797, 1, 8, 8) float32 in random order, and their labels (1797,) int64."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SystemExit(
            f"train_digits.py needs scikit-learn, which has the images: {error}. Install it: "
            "pip install scikit-learn"
        ) from None
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def train(net: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """Goes through whole batches, in the order given."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    net.train()
    for _ in range(epochs):
        for first in range(0, len(labels) - BATCH + 1, BATCH):
            batch = slice(first, first + BATCH)
            loss = F.cross_entropy(net(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def accuracy(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of right answers."""
    net.eval()
    with torch.no_grad():
        return float((net(images).argmax(-1) == labels).float().mean())


def main() -> None:
    """Trains both nets and prints how many images each reads rightly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--device", choices=("npu", "cpu"), default="npu")
    arguments = parser.parse_args()
    images, labels = data()
    kept_back = len(labels) // 5
    torch.manual_seed(0)
    eager = Net()
    compiled = copy.deepcopy(eager).to(arguments.device)
    npu_compiler.compile(compiled, CompilerConfig(training=True))
    for name, net, place in (("eager on cpu", eager, "cpu"), ("compiled", compiled, None)):
        here = place or arguments.device
        x, y = images.to(here), labels.to(here)
        train(net, x[kept_back:], y[kept_back:], arguments.epochs)
        print(f"{name:14} {accuracy(net, x[:kept_back], y[:kept_back]):.4f}")


if __name__ == "__main__":
    main()

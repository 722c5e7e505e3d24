"""Classifies images with a small convolutional net, compiled for the npu, and prints the time.

    python examples/slow_layer/classify.py [--variant dense|separable] [--batches 20]

Weights and images are random, since only time matters here. The variant `separable` replaces the
convolution in the middle by two smaller ones: each channel by itself, then all channels of a pixel.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

CHANNELS = 192
PICTURES = (8, 3, 32, 32)


class Separable(nn.Sequential):
    """A 3 x 3 convolution of each channel by itself, then one of all channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
            nn.Conv2d(channels, channels, 1),
        )


class Net(nn.Module):
    """Pictures (batch, 3, 32, 32) to logits (batch, 10)."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, stride=2, padding=1)
        self.narrow = nn.Conv2d(CHANNELS, CHANNELS, 1)
        if variant == "separable":
            self.middle: nn.Module = Separable(CHANNELS)
        else:
            self.middle = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.head = nn.Linear(CHANNELS, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, 10)."""
        found = self.narrow(self.stem(pictures).relu()).relu()
        return self.head(self.middle(found).relu().mean(dim=(2, 3)))


def main() -> None:
    """Runs the batches and prints the time of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", choices=("dense", "separable"), default="dense")
    parser.add_argument("--batches", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    net = torch.compile(Net(arguments.variant).eval().to("npu"), backend="npu")
    with torch.no_grad():
        net(torch.randn(PICTURES, device="npu"))  # compiles
        times = []
        for _ in range(arguments.batches):
            pictures = torch.randn(PICTURES, device="npu")
            start = time.perf_counter()
            net(pictures).cpu()
            times.append(time.perf_counter() - start)
    print(f"{arguments.variant}: {1e3 * sorted(times)[len(times) // 2]:.2f} ms per batch")


if __name__ == "__main__":
    main()

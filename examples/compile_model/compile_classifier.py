"""Compiles a PyTorch model for the npu device in several precisions, and keeps it in a folder.

    python examples/compile_model/compile_classifier.py [--batch 4]

Each is compared with the model on the CPU; the folder starts without the model's class.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from torch import nn

import npu_compiler


class Block(nn.Module):
    """Mixes channels of vectors (batch, tokens, 64), and adds them to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns vectors (batch, tokens, 64)."""
        return x + self.layers(self.norm(x))


class Classifier(nn.Module):
    """Two blocks, and ten classes from the mean of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, 10)."""
        return self.head(self.blocks(x).mean(1))


def main() -> None:
    """Prints the relative error of each precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Classifier().eval()
    x = torch.randn(options.batch, 16, 64)
    with torch.no_grad():
        expected = model(x)

    def report(name: str, found: torch.Tensor) -> None:
        error = (found.cpu() - expected).norm() / expected.norm()
        print(f"{name:9} {float(error):.1e}")

    for dtype in ("float32", "bfloat16", "int8"):
        compiled = copy.deepcopy(model)
        npu_compiler.compile(compiled, dtype=dtype)
        report(dtype, compiled(x))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "classifier"
        npu_compiler.export(model, (x,), folder, dynamic={"x": (0,)})
        report("exported", npu_compiler.load(folder)(x))


if __name__ == "__main__":
    main()

"""Multiplies two matrices on the npu device: by an operator, compiled, and as a graph by hand.

    python examples/matmul/multiply.py [--size 256]

All three are compared with the product on the CPU.
"""

from __future__ import annotations

import argparse

import torch

from npu_compiler import GraphBuilder


def main() -> None:
    """Prints how far each product is from the CPU's, relative to its largest number."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256)
    size = parser.parse_args().size
    torch.manual_seed(0)
    left, right = torch.randn(size, size), torch.randn(size, size)
    expected = left @ right

    a, b = left.to("npu"), right.to("npu")
    compiled = torch.compile(torch.matmul, backend="npu")
    graph = GraphBuilder()
    x, y = graph.parameter((size, size)), graph.parameter((size, size))
    graph.compile(x @ y)
    for name, product in (
        ("operator", a @ b),
        ("compiled", compiled(a, b)),
        ("graph", graph.run(a, b)),
    ):
        error = (product.cpu() - expected).abs().max() / expected.abs().max()
        print(f"{name:9} {float(error):.1e}")


if __name__ == "__main__":
    main()

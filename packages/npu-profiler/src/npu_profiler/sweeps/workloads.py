"""What a sweep computes in plain torch: a matrix product, the gated network of a decoder layer.

Importing this module imports torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Workload", "matmul", "mlp"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A function with its inputs.

    Attributes:
        function: to be called with them.
        inputs: on the device.
        flops: of one call, a multiply-add counted as two.
        size_bytes: of what a call reads and writes at least: inputs, weights and result, once each.
    """

    function: Callable[..., torch.Tensor]
    inputs: Sequence[torch.Tensor]
    flops: int
    size_bytes: int


class _GatedNetwork(torch.nn.Module):
    """down(silu(gate(x)) * up(x)), as in Llama; x: (batch, hidden)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(hidden, inner, bias=False)
        self.up = torch.nn.Linear(hidden, inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (batch, hidden)."""
        result: torch.Tensor = self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))
        return result


def matmul(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Workload:
    """The product of (m, k) and (k, n).

    Args:
        sizes: m, k and n.
        dtype: of both and of the result.
        device: where they are.
    """
    m, k, n = sizes
    a = torch.randn(m, k).to(device=device, dtype=dtype)
    b = torch.randn(k, n).to(device=device, dtype=dtype)
    count = m * k + k * n + m * n
    return Workload(torch.matmul, (a, b), 2 * m * k * n, count * dtype.itemsize)


def mlp(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Workload:
    """The gated network of a decoder layer.

    Args:
        sizes: rows, hidden size and inner size.
        dtype: of weights, input and result.
        device: where they are.
    """
    rows, hidden, inner = sizes
    network = _GatedNetwork(hidden, inner).to(device=device, dtype=dtype).eval()
    x = torch.randn(rows, hidden).to(device=device, dtype=dtype)
    count = 3 * hidden * inner + 2 * rows * hidden
    return Workload(network, (x,), 6 * rows * hidden * inner, count * dtype.itemsize)

"""The parts of a batch norm over several devices: each one's statistics, their sum, their use.

Source: Ioffe and Szegedy, Batch Normalization, 2015; torch.nn.SyncBatchNorm calls these parts by
the same names, and has kernels for CUDA alone. input: (batch, channels, ...).
"""

from __future__ import annotations

import torch

__all__ = [
    "batch_norm_backward_elementwise",
    "batch_norm_backward_reduce",
    "batch_norm_elementwise",
    "batch_norm_gather_stats",
    "batch_norm_stats",
]


def batch_norm_stats(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse standard deviation of each channel, both (channels,)."""
    variance, mean = torch.var_mean(input, _others(input), correction=0)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats(
    mean: torch.Tensor, invstd: torch.Tensor, counts: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The statistics of all devices from those of each.

    Args:
        mean: (devices, channels).
        invstd: (devices, channels).
        counts: (devices,), elements of a channel on each.
        eps: that the inverse deviations hold.
    """
    share = (counts / counts.sum()).unsqueeze(1)
    whole = (mean * share).sum(0)
    squares = (invstd.square().reciprocal() - eps + mean.square()) * share
    return whole, torch.rsqrt(squares.sum(0) - whole.square() + eps)


def batch_norm_elementwise(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
) -> torch.Tensor:
    """The normalized input, by channel."""
    scale, shift, middle = (_along(one, input) for one in (weight * invstd, bias, mean))
    return (input - middle) * scale + shift


def batch_norm_backward_reduce(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  # the interface's name
    mean: torch.Tensor,
    invstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the devices add up for the gradient.

    Returns:
        By channel: the sum of `grad`, that of `grad * (input - mean)`, and the gradients of weight
        and bias.
    """
    sum_dy = grad.sum(_others(input))
    sum_dy_xmu = (grad * (input - _along(mean, input))).sum(_others(input))
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()


def batch_norm_backward_elementwise(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  # the interface's name
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the input from `batch_norm_backward_reduce`'s sums."""
    count = input.numel() // input.shape[1]
    slope = _along(sum_dy_xmu * invstd.square() / count, input)
    scale = _along(weight * invstd, input)
    middle = input - _along(mean, input)
    return (grad - _along(sum_dy / count, input) - middle * slope) * scale


def _others(tensor: torch.Tensor) -> list[int]:
    """All axes but that of the channels."""
    return [0, *range(2, tensor.dim())]


def _along(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A vector by channel, to be spread over the other axes."""
    return values.view(1, -1, *[1] * (tensor.dim() - 2))

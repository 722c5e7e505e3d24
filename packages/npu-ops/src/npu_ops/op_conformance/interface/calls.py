"""Ops of the interface that torch lacks, or has with other arguments, composed of torch ops.

A file of many short functions, one for each name of the interface's table. A device with a fused
kernel for one of them must give the same numbers. An optimizer step updates the parameter, which it
returns, and its states in place. All its tensors have the parameter's shape; `step` counts from 1,
including this step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import adadelta as _adadelta
from torch.optim import adagrad as _adagrad
from torch.optim import adam as _adam
from torch.optim import rmsprop as _rmsprop
from torch.optim import sgd as _sgd

__all__ = [
    "adadelta",
    "adagrad",
    "adam",
    "adamw",
    "attention_of_lengths",
    "attention_with_logsumexp",
    "batch_norm_backward_elementwise",
    "batch_norm_backward_reduce",
    "batch_norm_elementwise",
    "batch_norm_gather_stats",
    "batch_norm_stats",
    "causal_attention_of_lengths",
    "clip_grad_norm",
    "copy_rows",
    "einsum",
    "fused_adamw",
    "meshgrid",
    "nms",
    "norm",
    "paged_attention",
    "penalize",
    "penalize_repetition",
    "rmsprop",
    "roi_align",
    "rotate",
    "rotate_halves",
    "scaled_masked_softmax",
    "sgd",
    "sigmoid_focal_loss",
    "spmm",
    "token_scores",
    "token_values",
    "triangular_solve",
]


# Attention over packed sequences and paged caches. Source: Vaswani et al., Attention Is All You
# Need, 2017; Kwon et al., PagedAttention, 2023 (blocks); Su et al., RoFormer, 2021 (rotary
# embedding).


def attention_of_lengths(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    is_causal: bool = False,
) -> torch.Tensor:
    """Attention within each of several concatenated sequences.

    Args:
        query: (tokens, heads, head size).
        key: as query.
        value: as query.
        lengths: tokens of each sequence; their sum is `tokens`.
        is_causal: whether a token sees those before it alone.
    """
    parts = zip(*(torch.split(tensor, lengths) for tensor in (query, key, value)), strict=True)
    results = [
        scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=is_causal
        ).transpose(0, 1)
        for q, k, v in parts
    ]
    return torch.cat(results)


def causal_attention_of_lengths(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    """`attention_of_lengths` with causal masking."""
    return attention_of_lengths(query, key, value, lengths, is_causal=True)


def attention_with_logsumexp(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the logarithm of each row's sum of exponentials.

    Args:
        query: (batch, length, heads, head size).
        key: as query.
        value: as query.
        is_causal: whether a token sees those before it alone.

    Returns:
        As query, and (batch, heads, length).
    """
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~mask, -math.inf)
    sums = scores.logsumexp(-1)
    return ((scores - sums.unsqueeze(-1)).exp() @ v).transpose(1, 2), sums


def token_scores(
    query: torch.Tensor, keys: torch.Tensor, locations: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Scores of one new token of each sequence against its cached keys.

    Args:
        query: (batch, heads, head size).
        keys: (slots, heads, head size), of all sequences.
        locations: (batch, longest), the slots of each sequence.
        lengths: (batch,), number of used slots.

    Returns:
        (batch, heads, longest); 0 past a sequence's length.
    """
    found = keys[locations]
    scores = torch.einsum("bhd,blhd->bhl", query, found) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~_used(locations, lengths).unsqueeze(1), 0)


def token_values(
    scores: torch.Tensor, values: torch.Tensor, locations: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Sums of values, weighted by the softmax of `token_scores`.

    Args:
        scores: (batch, heads, longest).
        values: (slots, heads, head size).
        locations: (batch, longest).
        lengths: (batch,), at least 1 each.

    Returns:
        (batch, heads, head size).
    """
    hidden = ~_used(locations, lengths).unsqueeze(1)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("bhl,blhd->bhd", weights, values[locations])


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Attention of one new token of each sequence over its cache blocks.

    Args:
        query: (batch, heads, head size).
        key_cache: (blocks, block size, heads, head size).
        value_cache: as key_cache.
        blocks: (batch, most blocks), the blocks of each sequence, in order.
        lengths: (batch,), tokens of each.

    Returns:
        As query.
    """
    slots = blocks.unsqueeze(-1) * key_cache.shape[1] + torch.arange(
        key_cache.shape[1], device=blocks.device
    )
    locations = slots.flatten(1)
    scores = token_scores(query, key_cache.flatten(0, 1), locations, lengths)
    return token_values(scores, value_cache.flatten(0, 1), locations, lengths)


def copy_rows(key: torch.Tensor, destinations: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Writes the keys of new tokens into their cache slots; returns the cache.

    Args:
        key: (tokens, heads, head size).
        destinations: (tokens,), int64, no slot twice.
        cache: (slots, heads, head size).
    """
    return cache.index_copy_(0, destinations, key)


def scaled_masked_softmax(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The softmax of `scale * input` where mask is false.

    Args:
        input: (batch, heads, length, keys).
        mask: (batch, 1, length, keys), bool; each row has a false element.
        scale: of the scores.
    """
    return (input * scale).masked_fill(mask, -10000.0).softmax(-1)


def rotate(
    x1: torch.Tensor,
    x2: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    conjugate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates the points (x1, x2) by an angle, or back.

    Args:
        x1: (batch, length, heads, half a head).
        x2: as x1.
        cos: (length, 1, half a head).
        sin: as cos.
        conjugate: whether to rotate back.
    """
    sine = -sin if conjugate else sin
    return x1 * cos - x2 * sine, x1 * sine + x2 * cos


def rotate_halves(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding of queries and keys, with pairs from both halves.

    Args:
        query: (batch, heads, length, head size).
        key: (batch, key heads, length, head size).
        cos: (length, head size).
        sin: as cos.
    """

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return turned(query), turned(key)


def _used(locations: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(locations.shape[1], device=locations.device)
    return positions < lengths.unsqueeze(1)


# Penalties on the logits of tokens that occurred. Source: Keskar et al., CTRL, 2019 (repetition).
# Tokens and counts of all sequences are concatenated, `lengths` for each.


def penalize(
    logits: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
    lengths: list[int],
) -> torch.Tensor:
    """Subtracts `presence`, and `frequency` per occurrence, from logits of tokens that occurred.

    Args:
        logits: (batch, vocabulary).
        presence: (batch,).
        frequency: (batch,).
        tokens: (all,), int64, no token twice in a sequence.
        counts: (all,), number of occurrences.
        lengths: tokens of each sequence.
    """
    rows = _rows(logits, lengths)
    penalty = presence[rows] + frequency[rows] * counts.to(logits.dtype)
    return logits.index_put((rows, tokens), logits[rows, tokens] - penalty)


def penalize_repetition(
    logits: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
    repetition: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
    lengths: list[int],
) -> torch.Tensor:
    """Divides positive logits of tokens that occurred by `repetition`, (batch,), then `penalize`.

    Negative ones are multiplied by it.
    """
    rows = _rows(logits, lengths)
    found = logits[rows, tokens]
    by = repetition[rows]
    changed = logits.index_put((rows, tokens), torch.where(found > 0, found / by, found * by))
    return penalize(changed, presence, frequency, tokens, counts, lengths)


def _rows(logits: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    numbers = torch.arange(len(lengths), device=logits.device)
    return numbers.repeat_interleave(torch.tensor(lengths, device=logits.device))


# Parts of a batch norm over several devices: per-device statistics, their sum, and their use.
# Source: Ioffe and Szegedy, Batch Normalization, 2015; torch.nn.SyncBatchNorm uses the same names,
# with kernels only for CUDA. input: (batch, channels, ...).


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
    """Combines the statistics of all devices.

    Args:
        mean: (devices, channels).
        invstd: (devices, channels).
        counts: (devices,), elements of a channel on each.
        eps: epsilon in the inverse deviations.
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
    """Normalizes the input by channel."""
    scale, shift, middle = (_along(one, input) for one in (weight * invstd, bias, mean))
    return (input - middle) * scale + shift


def batch_norm_backward_reduce(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  # the interface's name
    mean: torch.Tensor,
    invstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sums over devices for the gradient.

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
    """Gradient of the input from the sums of `batch_norm_backward_reduce`."""
    count = input.numel() // input.shape[1]
    slope = _along(sum_dy_xmu * invstd.square() / count, input)
    scale = _along(weight * invstd, input)
    middle = input - _along(mean, input)
    return (grad - _along(sum_dy / count, input) - middle * slope) * scale


def _others(tensor: torch.Tensor) -> list[int]:
    """All axes except the channels."""
    return [0, *range(2, tensor.dim())]


def _along(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Reshapes a vector over channels to broadcast over the other axes."""
    return values.view(1, -1, *[1] * (tensor.dim() - 2))


# Detection ops in plain torch: non-maximum suppression, region pooling, focal loss. Source: He et
# al., Mask R-CNN, 2017 (roi_align, with a half-pixel offset); Lin et al., Focal Loss for Dense
# Object Detection, 2017. boxes: (n, 4) as x1, y1, x2, y2.


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Non-maximum suppression: indices of boxes that overlap no better box too much, best first.

    Args:
        boxes: (n, 4).
        scores: (n,), no two equal.
        iou_threshold: the largest allowed intersection over union.
    """
    order = scores.argsort(descending=True)
    sorted_boxes = boxes[order]
    left_top = torch.maximum(sorted_boxes[:, None, :2], sorted_boxes[None, :, :2])
    right_bottom = torch.minimum(sorted_boxes[:, None, 2:], sorted_boxes[None, :, 2:])
    common = (right_bottom - left_top).clamp(min=0).prod(-1)
    area = (sorted_boxes[:, 2:] - sorted_boxes[:, :2]).prod(-1)
    overlaps = common > iou_threshold * (area[:, None] + area[None, :] - common)
    kept = torch.ones_like(order, dtype=torch.bool)
    for index in range(len(order)):
        better = overlaps[index, :index] & kept[:index]
        kept[index] = ~better.any()
    return order[kept]


def roi_align(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    boxes: torch.Tensor,
    output_size: list[int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = 2,
) -> torch.Tensor:
    """Pools regions of the first image into cells, each the mean of interpolated points.

    Args:
        input: (batch, channels, height, width).
        boxes: (regions, 4), in pixels before the scale.
        output_size: rows and columns of cells.
        spatial_scale: scale from box coordinates to the input's pixels.
        sampling_ratio: points of a cell along each axis.

    Returns:
        (regions, channels, rows, columns).
    """
    rows, columns = (cells * sampling_ratio for cells in output_size)
    corners = boxes * spatial_scale - 0.5
    (x1, y1, x2, y2) = (corners[:, i, None] for i in range(4))

    def points(count: int) -> torch.Tensor:
        steps = torch.arange(count, device=boxes.device, dtype=boxes.dtype)
        return (steps + 0.5) / count

    height, width = input.shape[-2:]
    x = (x1 + (x2 - x1) * points(columns)) * 2 / max(1, width - 1) - 1
    y = (y1 + (y2 - y1) * points(rows)) * 2 / max(1, height - 1) - 1
    grid = torch.stack(
        (x[:, None, :].expand(-1, rows, -1), y[:, :, None].expand(-1, -1, columns)), -1
    )
    images = input[:1].expand(len(boxes), -1, -1, -1)
    found = functional.grid_sample(images, grid, padding_mode="border", align_corners=True)
    return functional.avg_pool2d(found, sampling_ratio)


def sigmoid_focal_loss(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    target: torch.Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "mean",
) -> torch.Tensor:
    """Cross entropy of each logit, reduced where it is already right.

    Args:
        input: logits of any shape.
        target: 0 or 1, as input.
        alpha: weight of the ones; zeros have 1 - alpha.
        gamma: exponent of the reduction.
        reduction: `none`, `mean` or `sum`.
    """
    chance = torch.sigmoid(input)
    loss = functional.binary_cross_entropy_with_logits(input, target, reduction="none")
    wrong = chance * (1 - target) + (1 - chance) * target
    weighed = loss * wrong**gamma * (alpha * target + (1 - alpha) * (1 - target))
    return {"none": weighed, "mean": weighed.mean(), "sum": weighed.sum()}[reduction]


_ADAM_STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
_ADAM_OPTIONS = {
    "lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False,
}  # fmt: skip


def _optimizer(
    step_of: Callable[..., None], states: tuple[str, ...], options: dict[str, Any], **fixed: Any
) -> Callable[..., torch.Tensor]:
    """Returns a step `(param, grad, *states, *options) -> param` around torch's functional one.

    Args:
        step_of: torch's function, on lists of tensors, one for each parameter.
        states: names of the tensors after the gradient. `step` is a number, which is converted to
            the tensor that torch increments.
        options: names with defaults; None for a required option.
        fixed: further arguments of torch's function.
    """
    names = [*states, *options]

    def run(param: torch.Tensor, grad: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        if len(given) > len(names) or not named.keys() <= set(names[len(given) :]):
            raise TypeError(f"expected param, grad, {', '.join(names)}, got {given}, {named}")
        values = options | dict(zip(names, given, strict=False)) | named
        lists = [[values.pop(state)] for state in states]
        if "step" in states:
            # The previous step; a fused kernel requires it on the parameter's device.
            device = param.device if fixed.get("fused") else "cpu"
            (step,) = lists[states.index("step")]
            lists[states.index("step")] = [torch.tensor(float(step - 1), device=device)]
        elif step_of is not _sgd.sgd:
            lists.append([torch.tensor(0.0)])
        if "amsgrad" in options and not values["amsgrad"]:
            lists[states.index("max_exp_avg_sq")] = []
        step_of([param], [grad], *lists, foreach=False, maximize=False, **values, **fixed)
        return param

    return run


sgd = _optimizer(
    _sgd.sgd,
    ("momentum_buffer",),
    {"lr": None, "momentum": 0.0, "weight_decay": 0.0, "dampening": 0.0, "nesterov": False},
    fused=False,
)
adam = _optimizer(_adam.adam, _ADAM_STATES, _ADAM_OPTIONS, fused=False)
# AdamW decouples weight decay from the gradient.
adamw = _optimizer(
    _adam.adam, _ADAM_STATES, _ADAM_OPTIONS, fused=False, decoupled_weight_decay=True
)
fused_adamw = _optimizer(
    _adam.adam, _ADAM_STATES, _ADAM_OPTIONS, fused=True, decoupled_weight_decay=True
)
adadelta = _optimizer(
    _adadelta.adadelta,
    ("square_avg", "acc_delta"),
    {"lr": None, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0},
)
adagrad = _optimizer(
    _adagrad.adagrad,
    ("state_sum", "step"),
    {"lr": None, "eps": 1e-10, "weight_decay": 0.0},
    lr_decay=0.0,
)
rmsprop = _optimizer(
    _rmsprop.rmsprop,
    ("square_avg", "grad_avg", "momentum_buffer"),
    {
        "lr": None, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0,
        "centered": False,
    },
)  # fmt: skip


def clip_grad_norm(
    grads: list[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` on gradients, scaled in place.

    Returns:
        The norm before clipping, a scalar.
    """
    parameters = [torch.empty_like(grad).requires_grad_() for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


def einsum(equation: str, operands: list[torch.Tensor]) -> torch.Tensor:
    """`torch.einsum` with a list of operands."""
    return torch.einsum(equation, *operands)


def meshgrid(tensors: list[torch.Tensor], *, indexing: str = "ij") -> tuple[torch.Tensor, ...]:
    """`torch.meshgrid` with a list of 1-d tensors."""
    return torch.meshgrid(*tensors, indexing=indexing)


def norm(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    p: float | None = 2,
    dim: list[int] | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    """`torch.norm` with an int or float p."""
    found: torch.Tensor = torch.norm(input, p, dim, keepdim)
    return found


def spmm(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    mat2: torch.Tensor,
) -> torch.Tensor:
    """`torch.sparse.mm` of a dense matrix's nonzero values, (n, k), with (k, m)."""
    product: torch.Tensor = torch.sparse.mm(input.to_sparse(), mat2)
    return product


def triangular_solve(
    b: torch.Tensor,
    A: torch.Tensor,  # the name in the interface
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the solution x of `A @ x = b`, or of `A.mT @ x = b`, and a copy of A's triangle."""
    matrix = A.triu() if upper else A.tril()
    left = matrix.mT if transpose else matrix
    solution = torch.linalg.solve_triangular(
        left, b, upper=upper != transpose, unitriangular=unitriangular
    )
    return solution, matrix

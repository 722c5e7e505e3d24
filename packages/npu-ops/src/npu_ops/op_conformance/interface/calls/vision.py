"""Detection's ops in plain torch: suppression of boxes, cut-outs of regions, the focal loss.

Source: He et al., Mask R-CNN, 2017 (roi_align, with half a pixel taken off); Lin et al., Focal Loss
for Dense Object Detection, 2017. boxes: (n, 4) as x1, y1, x2, y2.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["nms", "roi_align", "sigmoid_focal_loss"]


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Indices of the boxes that overlap no better one by more than a share, the best first.

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
    """Regions of the first image, each cut into cells that are means of interpolated points.

    Args:
        input: (batch, channels, height, width).
        boxes: (regions, 4), in pixels before the scale.
        output_size: rows and columns of cells.
        spatial_scale: from the boxes' pixels to the input's.
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
    """The cross entropy of each logit, less where it is already right.

    Args:
        input: logits of any shape.
        target: 0 or 1, as input.
        alpha: weight of the ones; that of the zeros is 1 - alpha.
        gamma: how much less.
        reduction: `none`, `mean` or `sum`.
    """
    chance = torch.sigmoid(input)
    loss = functional.binary_cross_entropy_with_logits(input, target, reduction="none")
    wrong = chance * (1 - target) + (1 - chance) * target
    weighed = loss * wrong**gamma * (alpha * target + (1 - alpha) * (1 - target))
    return {"none": weighed, "mean": weighed.mean(), "sum": weighed.sum()}[reduction]

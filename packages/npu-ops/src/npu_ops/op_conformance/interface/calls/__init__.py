"""Ops of the interface that torch has under no name of its own, as formulas over torch's ops.

A device that has a fused kernel for one of them is held to the same numbers.
"""

from npu_ops.op_conformance.interface.calls.attention import (
    attention_of_lengths,
    attention_with_logsumexp,
    causal_attention_of_lengths,
    copy_rows,
    paged_attention,
    rotate,
    rotate_halves,
    scaled_masked_softmax,
    token_scores,
    token_values,
)
from npu_ops.op_conformance.interface.calls.normalization import (
    batch_norm_backward_elementwise,
    batch_norm_backward_reduce,
    batch_norm_elementwise,
    batch_norm_gather_stats,
    batch_norm_stats,
)
from npu_ops.op_conformance.interface.calls.optimizers import (
    adadelta,
    adagrad,
    adam,
    adamw,
    clip_grad_norm,
    fused_adamw,
    rmsprop,
    sgd,
)
from npu_ops.op_conformance.interface.calls.sampling import penalize, penalize_repetition
from npu_ops.op_conformance.interface.calls.signatures import (
    einsum,
    meshgrid,
    norm,
    spmm,
    triangular_solve,
)
from npu_ops.op_conformance.interface.calls.vision import nms, roi_align, sigmoid_focal_loss

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

"""The gradient of a convolution's input becomes a call of its own."""

from __future__ import annotations

import torch

from npu_compiler.passes.separate_convolution_gradients import SeparateConvolutionGradients

PASS = SeparateConvolutionGradients()
OP = "aten.convolution_backward.default"
TENSORS = (torch.ones(1, 3, 4, 4), torch.ones(1, 2, 6, 6), torch.ones(3, 2, 3, 3))


def gradients(*mask):
    def call(g, x, w):
        one, none = [1, 1], [0, 0]
        result = torch.ops.aten.convolution_backward(
            g, x, w, [3], one, none, one, False, none, 1, list(mask)
        )
        # torch may compute more than it was asked for.
        return [part for part, is_asked in zip(result, mask, strict=True) if is_asked]

    return call


def test_gradient_of_the_input_is_separated(rewrites):
    done = rewrites(gradients(True, True, True), *TENSORS, passes=PASS, kind="backward")
    assert (done.count, done.ops) == (1, [OP, OP])


def test_single_gradient_stays(rewrites):
    for mask in ((True, False, False), (False, True, True)):
        done = rewrites(gradients(*mask), *TENSORS, passes=PASS, kind="backward")
        assert (done.count, done.ops) == (0, [OP])


def test_op_that_is_to_run_eagerly_stays(rewrites):
    kept = frozenset({OP})
    done = rewrites(
        gradients(True, True, True), *TENSORS, passes=PASS, kind="backward", kept_ops=kept
    )
    assert done.count == 0

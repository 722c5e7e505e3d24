"""Resizing in training graphs: one call each way, also in sizes that vary."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from npu_compiler.graph.whole_resizing import resizing_kept_whole


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_resizing_is_one_call_each_way(mode, dynamic):
    calls = set()

    def record(graph, inputs):
        calls.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    def backend(graph, inputs):
        with resizing_kept_whole():
            return aot_autograd(fw_compiler=record, bw_compiler=record)(graph, inputs)

    def resize(image):
        return F.interpolate(image, scale_factor=2, mode=mode).square().sum()

    image = torch.randn(2, 3, 4, 5, requires_grad=True)
    torch.compile(resize, backend=backend, dynamic=dynamic)(image).backward()
    assert {f"aten.upsample_{mode}2d{end}.default" for end in ("", "_backward")} <= calls
    assert not {one for one in calls if "index" in one}
    gradient, image.grad = image.grad, None
    resize(image).backward()
    torch.testing.assert_close(gradient, image.grad)


def test_torchs_own_tracing_is_as_before():
    op = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(op.py_kernels)
    with resizing_kept_whole():
        assert op.py_kernels != before
    assert op.py_kernels == before

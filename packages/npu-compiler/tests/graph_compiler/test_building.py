"""Programs for an NPU, built without one: rewritten, or cut at refused calls."""

from __future__ import annotations

import dataclasses

import numpy as np
import openvino.opset15 as ops
import torch
from torch.nn import functional

import npu_compiler
from npu_compiler.lowering import registry


class Folded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        y = self.linear(x)
        mask = torch.where(y > 0, x > 0, x < 1)
        columns = torch.where(y.isfinite(), y, 0.0) * mask
        return self.linear(functional.fold(columns.reshape(1, 16, 16), (7, 7), 4).flatten()[:16])


def as_one_operation(ctx, self, output_size, kernel_size, dilation, padding, stride):
    sizes = [np.array(size, np.int64) for size in (output_size, kernel_size)]
    return ops.col2im(ctx.get(self), *sizes, stride, dilation, padding, padding)


def explained(target, folder):
    torch.manual_seed(0)
    model, x = Folded().eval(), torch.randn(16, 16)
    x[0, 0], x[1, 1], x[2] = float("nan"), float("inf"), float("-inf")
    options = {"target": target, "cache_dir": folder}
    with torch.no_grad():
        said = npu_compiler.explain(model, x, options=options)
        torch._dynamo.reset()
        found = torch.compile(model, backend="npu", options=options)(x)
        torch.testing.assert_close(found, model(x))
    return said


def test_target_npu_rewrites_what_has_an_equal_form_and_cuts_at_the_rest(tmp_path, monkeypatch):
    fold = torch.ops.aten.col2im.default
    row = dataclasses.replace(registry.find_converter(fold), function=as_one_operation)
    monkeypatch.setitem(registry._TABLE, fold, row)
    assert explained("openvino", tmp_path).graphs[0].programs[0].rewritten == ()
    for is_kept in (False, True):
        said = explained("NPU", tmp_path)
        (eager,) = said.eager
        assert eager.op == "aten.col2im.default"
        assert "an NPU refuses Col2Im (opset15)" in eager.reason
        assert "src/vpux_compiler/src/frontend/IE.cpp" in eager.reason
        programs = [one for graph in said.graphs for one in graph.programs]
        rewritten = [text.partition(" ")[0] for one in programs for text in one.rewritten]
        assert sorted(rewritten) == ["Select"]
        assert all(one.from_cache == is_kept for one in programs)
        assert "rewritten, since an NPU would refuse it" in str(said)

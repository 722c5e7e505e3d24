"""Folders for an NPU: rewritten, with equal results, or refused by the rule."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import openvino.opset15 as ops
import pytest
import torch
from torch.nn import functional

import npu_compiler
from npu_compiler.errors import ExportError
from npu_compiler.lowering import registry
from npu_compiler.readiness import check_folder


class Choice(torch.nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x.char(), (x - 1).char())


class Folded(torch.nn.Module):
    def forward(self, x):
        return functional.fold(x, (7, 7), 4)


def refusals(folder):
    return [one.operation for one in check_folder(folder).findings if one.verdict == "refused"]


def test_what_an_npu_would_refuse_is_written_as_equal_forms(tmp_path, on_npu):
    x = torch.tensor([-127.0, 127.0, -1.0, 0.0, 3.0])
    npu_compiler.export(Choice(), (x,), tmp_path / "plain")
    npu_compiler.export(Choice(), (x,), tmp_path / "npu", target="NPU")
    npu_compiler.export(Choice(), (x,), tmp_path / "openvino", target="openvino")
    assert set(refusals(tmp_path / "openvino")) == {"Select (opset1)"}
    assert set(refusals(tmp_path / "plain")) == (set() if on_npu else {"Select (opset1)"})
    assert refusals(tmp_path / "npu") == []
    assert "Select (opset1) of where/aten.where.self: Convert and Select" in str(
        check_folder(tmp_path / "npu")
    )
    assert torch.equal(npu_compiler.load(tmp_path / "npu")(x), Choice()(x))


def as_one_operation(ctx, self, output_size, kernel_size, dilation, padding, stride):
    sizes = [np.array(size, np.int64) for size in (output_size, kernel_size)]
    return ops.col2im(ctx.get(self), *sizes, stride, dilation, padding, padding)


def test_what_has_no_equal_form_is_an_error_with_rule_and_line(tmp_path, monkeypatch):
    fold = torch.ops.aten.col2im.default
    row = dataclasses.replace(registry.find_converter(fold), function=as_one_operation)
    monkeypatch.setitem(registry._TABLE, fold, row)
    line = inspect.getsourcelines(Folded.forward)[1] + 1
    rule = rf"operation types: Col2Im .*test_for_npu\.py:{line}: .*IE\.cpp at .*\[export-npu\]"
    with pytest.raises(ExportError, match=rule):
        npu_compiler.export(Folded(), (torch.ones(1, 16, 16),), tmp_path / "m", target="NPU")
    assert not (tmp_path / "m").exists()


def test_sizes_that_vary_are_an_error(tmp_path):
    model, x = torch.nn.Linear(4, 2), torch.ones(3, 4)
    with pytest.raises(ExportError, match=r"static shapes: .*\[export-npu\]"):
        npu_compiler.export(model, (x,), tmp_path / "m", dynamic={"input": (0,)}, target="NPU")

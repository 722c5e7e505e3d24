"""Loading: files are gone afterwards, and a failing kernel generator is gone around."""

from __future__ import annotations

import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

import npu_runtime
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs import compile_options, load, load_model, load_tolerant


def model() -> ov.Model:
    x = ops.parameter([4], ov.Type.f32)
    return ov.Model([ops.relu(x)], [x], "relu")


def test_temporary_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_TMPDIR", str(tmp_path))
    program = load_model(model(), name="test", options=compile_options("float32"))
    assert list(tmp_path.iterdir()) == []
    assert program.run([-torch.ones(4)])[0].tolist() == [0.0] * 4


def test_failing_snippets_are_turned_off_where_the_device_has_them(monkeypatch, on_npu):
    seen = []
    original = load.load_model

    def failing(model, *, name, options, device_index=None, profiling=False):
        seen.append(options.get("SNIPPETS_MODE"))
        if len(seen) == 1:
            raise npu_runtime.ProgramError("snippets/src/x.cpp: no", "program-load")
        return original(model, name=name, options=options, device_index=device_index)

    monkeypatch.setattr(load, "load_model", failing)
    if on_npu:
        with pytest.raises(npu_runtime.ProgramError, match="snippets"):
            load_tolerant(model(), name="test", options=compile_options("float32"))
        assert seen == [None]
        return
    program = load_tolerant(model(), name="test", options=compile_options("float32"))
    assert seen == [None, "DISABLE"]
    assert program.run([torch.ones(4)])[0].tolist() == [1.0] * 4


def test_other_failures_are_the_callers(monkeypatch):
    def failing(model, *, name, options, device_index=None, profiling=False):
        raise npu_runtime.ProgramError("no memory", "program-load")

    monkeypatch.setattr(load, "load_model", failing)
    with pytest.raises(npu_runtime.ProgramError, match="no memory"):
        load_tolerant(model(), name="test", options=compile_options("float32"))


@pytest.mark.parametrize("half, size", [(False, 4), (True, 2)])
def test_model_is_written_with_whole_or_half_weights(tmp_path, half, size):
    x = ops.parameter([1, 64], ov.Type.f32)
    product = ops.matmul(x, ops.constant(torch.randn(64, 64).numpy()), False, True)
    path = tmp_path / "model.xml"
    load.write_model(ov.Model([ops.result(product)], [x], "product"), path, half=half)
    assert path.with_suffix(".bin").stat().st_size == 64 * 64 * size
    assert openvino_core().read_model(path).output(0).element_type == ov.Type.f32

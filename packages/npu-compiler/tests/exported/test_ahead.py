"""Folders for an NPU: rewritten, with equal results, or refused by the rule."""

from __future__ import annotations

import dataclasses
import inspect
import json

import numpy as np
import openvino.opset15 as ops
import pytest
import torch
from torch import nn
from torch.nn import functional

import npu_compiler
from npu_compiler import cli
from npu_compiler.errors import ExportError, OptionError, TargetError
from npu_compiler.exported import ahead
from npu_compiler.exported import load as loading
from npu_compiler.exported.ahead import write_blobs
from npu_compiler.exported.manifest import read_manifest
from npu_compiler.lowering import registry
from npu_compiler.openvino_core import openvino_core
from npu_compiler.readiness import check_folder
from npu_compiler.target_compiler import TargetReport, find_target
from npu_compiler.target_compiler.compile import TargetJob
from npu_runtime import info


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
    rule = rf"operation types: Col2Im .*test_ahead\.py:{line}: .*IE\.cpp at .*\[export-npu\]"
    with pytest.raises(ExportError, match=rule):
        npu_compiler.export(Folded(), (torch.ones(1, 16, 16),), tmp_path / "m", target="NPU")
    assert not (tmp_path / "m").exists()


def test_sizes_that_vary_are_an_error(tmp_path):
    model, x = torch.nn.Linear(4, 2), torch.ones(3, 4)
    with pytest.raises(ExportError, match=r"static shapes: .*\[export-npu\]"):
        npu_compiler.export(model, (x,), tmp_path / "m", dynamic={"input": (0,)}, target="NPU")


X = torch.linspace(-1, 1, 12).reshape(4, 3)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return nn.Linear(3, 2).eval()


@pytest.fixture
def cpu_blobs(installed, tmp_path, monkeypatch):
    """Compiles by the CPU plugin; the CPU and the stub of an NPU import its blobs."""

    def compile_jobs(jobs):
        for job in jobs:
            blob = tmp_path / f"{job.target.number}.blob"
            options = {"INFERENCE_PRECISION_HINT": "f32"}
            compiled = openvino_core().compile_model(job.model, "CPU", options)
            blob.write_bytes(compiled.export_model().getvalue())
            yield (
                job,
                TargetReport(
                    target=job.target.number,
                    compiler="cpu-1",
                    is_accepted=True,
                    reason="",
                    operation="",
                    blob=blob,
                    blob_bytes=blob.stat().st_size,
                    duration_s=0.0,
                    estimate=None,
                ),
            )

    monkeypatch.setattr(ahead, "compile_jobs", compile_jobs)


@pytest.fixture
def on_4000(monkeypatch):
    """The device counts as an NPU 4000."""
    monkeypatch.setattr(info, "npu_architecture", lambda: "4000")
    monkeypatch.setattr(loading, "_architecture", lambda device: "4000")


def test_folder_has_a_blob_for_each_target_and_its_estimate(installed, layer, tmp_path):
    seen = []
    folder = npu_compiler.export(
        layer,
        (X,),
        tmp_path / "model",
        targets=("lunar-lake", "5010", "NPU4000"),
        on_progress=lambda share, doing: seen.append((share, doing)),
    )
    manifest = read_manifest(folder)
    assert [blob.target for blob in manifest.blobs] == ["4000", "5010"]
    for blob in manifest.blobs:
        content = (folder / blob.file).read_bytes()
        assert len(content) == 4096
        assert content.rstrip(b"\0") == b"blob"
        assert blob.compiler == "fake-1"
        assert blob.model == manifest.files["model.xml"]
        assert blob.estimate["note"] == "the compiler's estimate, not a measurement"
        assert blob.estimate["latency_ms"] == 1.5
    assert [share for share, _ in seen] == [0.0, 0.5, 1.0]
    assert "compiled for NPU" in seen[-1][1]


@pytest.mark.parametrize("device", [None, "CPU"], ids=["tensors", "arrays"])
def test_npu_imports_its_blob_and_computes_what_the_model_does(
    cpu_blobs, on_4000, layer, tmp_path, device
):
    folder = npu_compiler.export(layer, (X,), tmp_path / "model", targets=("4000",))
    loaded = npu_compiler.load(folder, device=device)
    assert loaded.from_cache
    assert loaded.compiled_because is None
    result = torch.as_tensor(loaded(X if device is None else X.numpy()))
    # The CPU plugin computes imported blobs in its preferred precision.
    torch.testing.assert_close(result, layer(X), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", [None, "CPU"], ids=["tensors", "arrays"])
def test_blob_that_the_npu_does_not_take_is_compiled_and_told(
    installed, on_4000, layer, tmp_path, close, caplog, device
):
    folder = npu_compiler.export(layer, (X,), tmp_path / "model", targets=("4000",))
    loaded = npu_compiler.load(folder, device=device)  # b"blob" of the fake compiler
    assert not loaded.from_cache
    assert "the device does not take model.blob" in loaded.compiled_because
    assert "the device does not take model.blob" in caplog.text
    close(torch.as_tensor(loaded(X if device is None else X.numpy())), layer(X))


def test_cpu_ignores_blobs(installed, layer, tmp_path, caplog):
    folder = npu_compiler.export(layer, (X,), tmp_path / "model", targets=("4000",))
    loaded = npu_compiler.load(folder, device="CPU")
    assert loaded.compiled_because is None
    assert caplog.text == ""
    np.testing.assert_allclose(loaded(X.numpy()), layer(X).detach(), rtol=1e-4, atol=1e-5)


def test_sizes_that_vary_have_no_blobs(installed, layer, tmp_path):
    with pytest.raises(OptionError, match=r"\['input'\].*\[option-conflict\]"):
        npu_compiler.export(
            layer, (X,), tmp_path / "model", targets=("4000",), dynamic={"input": (0,)}
        )


def test_without_a_compiler_nothing_is_written(home, layer, tmp_path):
    with pytest.raises(TargetError, match="target-absent"):
        npu_compiler.export(layer, (X,), tmp_path / "model", targets=("4000",))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_interrupted_export_leaves_nothing_and_keeps_finished_blobs(
    installed, layer, tmp_path, monkeypatch, failure
):
    def interrupt(share, doing):
        if share == 0.5:
            raise failure

    place = tmp_path / "place"
    with pytest.raises(failure):
        npu_compiler.export(
            layer, (X,), place / "model", targets=("4000", "5010"), on_progress=interrupt
        )
    assert [*place.iterdir()] == []
    monkeypatch.setenv("FAKE_START", "1")  # the compiler does not start again
    found = 0
    for target in ("4000", "5010"):
        try:
            npu_compiler.export(layer, (X,), place / "model", targets=(target,), overwrite=True)
            found += 1
        except TargetError:
            pass
    assert found >= 1


@pytest.fixture
def refused(tmp_path, layer):
    """A job that the compiler refuses, and one that it takes."""
    folder = npu_compiler.export(layer, (X,), tmp_path / "model")
    path = folder / "model.xml"
    return folder, [
        TargetJob("model", path, find_target("4000"), {"FAKE": "refuse"}),
        TargetJob("model", path, find_target("5010")),
    ]


def test_refusal_names_target_program_compiler_and_words(installed, refused):
    folder, jobs = refused
    with pytest.raises(ExportError, match="target-refused") as caught:
        write_blobs(folder, jobs, name="Linear")
    text = str(caught.value)
    for part in ("NPU 4000 (Lunar Lake)", "'model'", "fake-1", "layer `the_sum` cannot be split"):
        assert part in text


def test_refusal_leads_to_module_and_line(installed, refused, monkeypatch):
    folder, jobs = refused
    kept = {"the_sum": ("layers.3", "model.py:7")}
    place = "npu_compiler.target_compiler.compile._named_operation"
    monkeypatch.setattr(place, lambda *_: "the_sum/Add")
    monkeypatch.setattr(ahead, "kept_origins", lambda model: kept)
    with pytest.raises(ExportError, match=r"operation 'the_sum/Add' \(layers\.3, model\.py:7\): "):
        write_blobs(folder, jobs, name="Linear")


def test_refusal_that_is_skipped_is_in_the_records(installed, refused):
    folder, jobs = refused
    records = write_blobs(folder, jobs, name="Linear", skip_refused=True)
    assert [record.refused for record in records] == ["[pass] layer `the_sum` cannot be split", ""]
    assert not (folder / "blobs" / "4000").exists()
    assert "no blob, the compiler refused it" in str(records[0])
    assert "1.5 ms a run (the compiler's estimate, not a measurement)" in str(records[1])


def test_command_exports_a_saved_program(installed, layer, tmp_path, capsys):
    saved, folder = tmp_path / "layer.pt2", tmp_path / "model"
    torch.export.save(torch.export.export(layer, (X,)), saved)
    arguments = ["export", str(saved), "-o", str(folder), "--target", "lunar-lake"]
    assert cli.main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["folder"] == str(folder)
    assert [blob["target"] for blob in answer["blobs"]] == ["4000"]
    assert "1 of 1, model compiled for NPU 4000 (Lunar Lake)" in said.err
    assert cli.main([*arguments[:-1], "lunar"]) == 2
    assert "[unknown-target]" in capsys.readouterr().err
    assert cli.main(arguments) == 2
    assert "[export-exists]" in capsys.readouterr().err

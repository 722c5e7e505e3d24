"""Exports are compared with torch before they are written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino.opset15 as ops
import pytest
import torch

import npu_compiler
from npu_compiler.errors import ExportError, WrongResultWarning
from npu_compiler.exported import trial
from npu_compiler.lowering import registry


class Wave(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin()


def _verified(folder: Path) -> str:
    return json.loads((folder / "manifest.json").read_text())["verified"]


@pytest.fixture
def wrong_sin(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(ctx: Any, self: Any) -> Any:
        return ops.cos(ctx.get(self))

    op = torch.ops.aten.sin.default
    monkeypatch.setitem(registry._TABLE, op, replace(registry._TABLE[op], function=convert))


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bfloat16"}, {"dtype": "int8"}, {"dtype": "int4"}], ids=str
)
def test_the_manifest_says_that_the_model_gave_torchs_results(tmp_path, options) -> None:
    x = torch.randn(3, 128)
    folder = npu_compiler.export(Wave().eval(), (x,), tmp_path / "m", **options)
    assert _verified(folder) == "yes"


@pytest.mark.usefixtures("wrong_sin")
@pytest.mark.parametrize("options", [{}, {"dtype": "int8"}], ids=str)
def test_a_wrong_model_is_not_written(tmp_path, options) -> None:
    with pytest.raises(ExportError, match="must match torch's results") as failure:
        npu_compiler.export(Wave().eval(), (torch.randn(3, 128),), tmp_path / "m", **options)
    assert failure.value.code == "wrong-result"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("wrong_sin")
def test_it_is_written_where_nobody_wants_to_know(tmp_path) -> None:
    folder = npu_compiler.export(
        Wave().eval(), (torch.randn(3, 128),), tmp_path / "m", verify="off"
    )
    assert _verified(folder) == "no"


def test_options_that_a_model_needs_are_kept_and_used(tmp_path, monkeypatch) -> None:
    original, answers = trial.compare, []

    def first_is_wrong(*args: Any, **kwargs: Any) -> Any:
        answers.append(1)
        found = [part + 1 for part in args[0]] if len(answers) == 1 else args[0]
        return original(found, *args[1:], **kwargs)

    monkeypatch.setattr(trial, "compare", first_is_wrong)
    model, x = Wave().eval(), torch.randn(3, 128)
    with pytest.warns(WrongResultWarning, match="right with SNIPPETS_MODE=DISABLE"):
        folder = npu_compiler.export(model, (x,), tmp_path / "m")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["device_options"] == {"SNIPPETS_MODE": "DISABLE"}
    loaded = npu_compiler.load(folder)
    assert loaded.manifest.options_for("CPU") == {"SNIPPETS_MODE": "DISABLE"}
    assert loaded.manifest.options_for("NPU") == {}
    torch.testing.assert_close(loaded(x), model(x))


def test_a_folder_written_before_has_no_verdict_and_loads(tmp_path) -> None:
    model, x = Wave().eval(), torch.randn(3, 128)
    folder = npu_compiler.export(model, (x,), tmp_path / "m")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["verified"], manifest["device_options"]
    path.write_text(json.dumps(manifest))
    loaded = npu_compiler.load(folder)
    assert loaded.manifest.verified == "no"
    torch.testing.assert_close(loaded(x), model(x))

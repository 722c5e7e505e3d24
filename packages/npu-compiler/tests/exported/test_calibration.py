"""Calibration of exported models: its effect, and calls that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import npu_compiler
from npu_compiler.errors import ExportError, OptionError
from npu_compiler.exported.capture import capture_module
from npu_compiler.openvino_core import openvino_core
from npu_compiler.quantize import compare_outputs


class Two(nn.Module):
    """Two inputs, one by name only, and a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(64, 64), nn.Linear(32, 64)
        self.out = nn.Linear(64, 48)

    def forward(self, x, scale=2.0, *, y=None):
        return {"z": self.out(torch.relu(self.left(x) * scale + self.right(y)))}


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()
    )


def element_types(folder):
    model = openvino_core().read_model(str(folder / "model.xml"))
    return {node.get_output_element_type(0).get_type_name() for node in model.get_ops()}


def two_calls(count):
    return [{"y": torch.randn(4, 32), "x": torch.randn(4, 64)} for _ in range(count)]


def test_int4_by_data_loads_and_is_near(tmp_path):
    model = Two().eval()
    example = two_calls(1)[0]
    folder = npu_compiler.export(
        model,
        (example["x"],),
        tmp_path / "model",
        kwargs={"y": example["y"]},
        calibration=two_calls(8),
        dtype="int4",
        group_size=32,
    )
    assert "u4" in element_types(folder)
    loaded = npu_compiler.load(folder)
    assert loaded.manifest.compression == "int4"
    report = compare_outputs(model, loaded, two_calls(3), limit=0.2)
    assert report.check().relative > 0


@pytest.mark.parametrize("args, names", [((), "xys"), (("x",), "ys"), (("x", "s"), "y")])
def test_calls_in_order_and_by_name_give_the_same_inputs(args, names):
    x, y = torch.randn(4, 64), torch.randn(4, 32)
    values = {"x": x, "y": y, "s": 3.0}
    captured = capture_module(
        Two(), (x,), {"y": y, "scale": 3.0}, {}, npu_compiler.CompilerConfig()
    )
    given = {{"s": "scale"}.get(name, name): values[name] for name in names}
    tensors = captured.tensors_of(tuple(values[name] for name in args), given)
    assert [tensor is wanted for tensor, wanted in zip(tensors, (x, y), strict=True)] == [True] * 2


def test_convolutions_in_int8_load_and_are_near(tmp_path):
    model = convolutions().eval()
    calls = [torch.randn(2, 3, 12, 12) for _ in range(8)]
    folder = npu_compiler.export(
        model, (calls[0],), tmp_path / "model", calibration=calls, dtype="int8", activations="int8"
    )
    model_file = openvino_core().read_model(str(folder / "model.xml"))
    assert "FakeQuantize" in {node.get_type_name() for node in model_file.get_ops()}
    report = compare_outputs(model, npu_compiler.load(folder), calls, limit=0.05)
    assert report.check().relative > 0


def test_varying_sizes_take_calibration_of_several_sizes(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).eval()
    calls = [torch.randn(size, 64) for size in (2, 5, 9)]
    folder = npu_compiler.export(
        model,
        (calls[0],),
        tmp_path / "model",
        dynamic={"input": (0,)},
        calibration=calls,
        dtype="int4",
        group_size=32,
    )
    assert compare_outputs(model, npu_compiler.load(folder), [torch.randn(7, 64)]).relative < 0.2


@pytest.mark.parametrize(
    "call, received",
    [
        ((torch.ones(4, 64), torch.ones(4, 32)), "missing a required|none for"),
        ({"x": torch.ones(4, 64)}, "none for 'y'"),
        ({"x": torch.ones(4, 64), "q": torch.ones(1)}, "'q'"),
        ({"x": torch.ones(4, 64), "y": [torch.ones(4, 32)] * 2}, "3 values, not 2"),
        ({"x": torch.ones(4, 64), "y": torch.ones(4, 31)}, r"\(4, 31\)"),
        ({"x": torch.ones(4, 64).double(), "y": torch.ones(4, 32)}, "float64"),
        ({"x": torch.ones(4, 64), "y": 3}, "int"),
    ],
    ids=["order", "missing", "unknown", "structure", "shape", "dtype", "number"],
)
def test_calls_that_do_not_fit_are_an_error(tmp_path, call, received):
    example = two_calls(1)[0]
    with pytest.raises(ExportError, match=received) as error:
        npu_compiler.export(
            Two(), (), tmp_path / "model", kwargs=example, calibration=[call], dtype="int4"
        )
    assert error.value.code == "export-input"
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "options, text",
    [
        ({"calibration": [torch.ones(4, 8)]}, "`calibration` must be given with dtype 'int4'"),
        (
            {"calibration": [torch.ones(4, 8)], "dtype": "int8"},
            "`calibration` must be given with dtype 'int4'",
        ),
        ({"dtype": "int8", "activations": "int8"}, "'int8', got none"),
        ({"dtype": "int4", "activations": "int8"}, "`dtype` must equal `activations`"),
        ({"dtype": "int4", "rounding": "awq"}, "and no calibration"),
        ({"dtype": "int8", "rounding": "gptq"}, "must be given with dtype 'int4'"),
    ],
    ids=["no dtype", "int8 alone", "no calibration", "int4 weights", "no data", "int8 rounded"],
)
def test_options_that_do_not_go_together_are_an_error(tmp_path, options, text):
    with pytest.raises(OptionError, match=text) as error:
        npu_compiler.export(nn.Linear(8, 8), (torch.ones(4, 8),), tmp_path / "model", **options)
    assert error.value.code == "option-conflict"


def test_no_calls_are_an_error(tmp_path):
    with pytest.raises(OptionError, match="got none") as error:
        npu_compiler.export(
            nn.Linear(64, 64), (torch.ones(4, 64),), tmp_path / "m", calibration=[], dtype="int4"
        )
    assert error.value.code == "quantize-data"


BY_DATA = [{"dtype": "int8", "activations": "int8"}, {"dtype": "int4", "rounding": "awq"}]


@pytest.mark.parametrize("options", BY_DATA, ids=["activations", "rounding"])
@pytest.mark.parametrize(
    "door",
    [lambda **options: npu_compiler.compile(nn.Linear(8, 8), **options), npu_compiler.GraphBuilder],
    ids=["compile", "GraphBuilder"],
)
def test_what_needs_calibration_data_is_for_export_alone(door, options):
    with pytest.raises(OptionError, match=r"npu_compiler\.export\(calibration=") as error:
        door(**options)
    assert error.value.code == "option-place"


@pytest.mark.parametrize("options", BY_DATA, ids=["activations", "rounding"])
def test_what_needs_calibration_data_is_no_option_of_the_backend(options):
    compiled = torch.compile(nn.Linear(8, 8), backend="npu", options=options)
    with pytest.raises(Exception, match=f"`{[*options][1]}` must be left out for a backend"):
        compiled(torch.ones(1, 8))


def test_rounding_is_the_one_that_was_chosen(tmp_path):
    model = Two().eval()
    example = two_calls(1)[0]
    calls = two_calls(4)
    written = []
    for rounding in ("gptq", "gptq", "awq"):
        folder = npu_compiler.export(
            model,
            (example["x"],),
            tmp_path / "model",
            kwargs={"y": example["y"]},
            calibration=calls,
            overwrite=True,
            dtype="int4",
            group_size=32,
            rounding=rounding,
        )
        written.append((folder / "model.bin").read_bytes())
    assert written[0] == written[1]
    assert written[0] != written[2]


def test_unknown_rounding_is_an_error():
    with pytest.raises(OptionError, match="one of 'gptq', 'awq', None, got 'nearest'") as error:
        npu_compiler.CompilerConfig(dtype="int4", rounding="nearest")
    assert error.value.code == "option-value"


def test_unknown_activations_are_an_error():
    with pytest.raises(OptionError, match="'int4'") as error:
        npu_compiler.CompilerConfig(dtype="int8", activations="int4")
    assert error.value.code == "option-value"

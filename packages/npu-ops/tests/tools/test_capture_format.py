from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from npu_ops.errors import OperatorInputError
from npu_ops.tools import OpCapture
from npu_ops.tools.capture_format import find_captures, load_capture


def capture(directory: Path, names: list[str], program) -> list[Path]:
    with OpCapture(directory, names):
        program()
    return find_captures(directory)


def test_a_capture_is_text_and_named_tensors(tmp_path: Path) -> None:
    x = torch.arange(6.0, device="npu").view(2, 3)
    (folder,) = capture(tmp_path / "calls", ["mul"], lambda: x * 2.5)
    assert sorted(file.name for file in folder.iterdir()) == ["call.json", "tensors.safetensors"]
    document = json.loads((folder / "call.json").read_text())
    assert document["op"] == "aten.mul.Tensor"
    assert document["signature"] == "aten.mul.Tensor(float32[2,3], 2.5)"
    assert document["line"].startswith(__file__)
    read = load_capture(folder)
    (args, kwargs), (result, *_) = read.before.restore("cpu"), read.after.restore("cpu")
    assert torch.equal(args[0], x.cpu())
    assert (args[1], kwargs) == (2.5, {})
    assert torch.equal(result, x.cpu() * 2.5)


def test_arguments_are_kept_as_they_were_before_a_write(tmp_path: Path) -> None:
    x = torch.zeros(4, device="npu")
    (folder,) = capture(tmp_path / "calls", ["add_"], lambda: x[::2].add_(3))
    read = load_capture(folder)
    (before, _), _ = read.before.restore("cpu")
    result, (after, _), _ = read.after.restore("cpu")
    assert before.tolist() == [0.0, 0.0]
    assert after.tolist() == result.tolist() == [3.0, 3.0]
    result.zero_()
    assert after.tolist() == [0.0, 0.0]


def test_bytes_that_a_call_does_not_change_are_written_once(tmp_path: Path) -> None:
    x = torch.rand(1000, device="npu")
    (folder,) = capture(tmp_path / "calls", ["sum"], lambda: x.sum(dim=0))
    assert (folder / "tensors.safetensors").stat().st_size < 5000


def test_all_kinds_of_arguments_come_back(tmp_path: Path) -> None:
    x = torch.ones(2, 3, dtype=torch.complex64, device="npu")

    def program() -> None:
        torch.full((2,), math.inf, device="npu", dtype=torch.float16)
        torch.clone(x, memory_format=torch.contiguous_format)
        torch.mul(x, 2 + 3j)
        torch.rand(2, device="npu", generator=torch.Generator("npu").manual_seed(1))

    folders = capture(tmp_path / "calls", ["full", "clone", "mul", "rand"], program)
    full, clone, mul, rand = (load_capture(folder).before.tree for folder in folders)
    assert full[0] == [[2], math.inf]
    assert full[1]["dtype"] is torch.float16
    assert full[1]["device"] == torch.device("npu:0") or full[1]["device"] == torch.device("npu")
    assert clone[1] == {"memory_format": torch.contiguous_format}
    assert mul[0][1] == 2 + 3j
    assert rand[1]["generator"].device.startswith("npu")


@pytest.mark.parametrize("damage", ["{", '{"format": 99}', '{"format": 1}'])
def test_a_damaged_capture_is_an_error(tmp_path: Path, damage: str) -> None:
    x = torch.ones(2, device="npu")
    (folder,) = capture(tmp_path / "calls", ["neg"], lambda: -x)
    (folder / "call.json").write_text(damage)
    with pytest.raises(OperatorInputError, match="must be the folder of a captured call") as caught:
        load_capture(folder)
    assert caught.value.code == "capture-unreadable"


def test_a_directory_without_captures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorInputError, match="found none") as caught:
        find_captures(tmp_path)
    assert caught.value.code == "capture-unreadable"


def test_what_has_no_place_in_the_format_is_left_out_and_counted(tmp_path: Path) -> None:
    x = torch.eye(3, device="npu").to_sparse()
    with OpCapture(tmp_path / "calls", ["neg"]) as tool:
        torch.neg(x)
    assert (tool.store.saved, tool.store.not_writable) == (0, 1)

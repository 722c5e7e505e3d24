from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from npu_ops.debugging import OpCapture, replay_directory, replay_report
from npu_ops.debugging.capture_folders import find_captures
from npu_ops.debugging.capture_format import load_capture
from npu_ops.errors import DamagedFileError, OperatorInputError


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    x = torch.linspace(0, 1, 6, device="npu").view(2, 3)
    (made,) = capture(tmp_path / "calls", ["exp"], x.exp)
    return made


@pytest.mark.parametrize("text", ['{"format": 99}', '{"format": 1}', "[]"])
def test_a_folder_that_holds_something_else_is_an_error(folder: Path, text: str) -> None:
    (folder / "call.json").write_text(text)
    with pytest.raises(OperatorInputError, match="must be the folder of a captured call") as caught:
        load_capture(folder)
    assert caught.value.code == "capture-unreadable"


@pytest.mark.parametrize("name", ["call.json", "tensors.safetensors"])
def test_each_flipped_byte_is_a_damaged_file(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    for place in range(0, len(whole), 7):
        if chr(whole[place]).isspace():  # between the words of JSON, which means nothing
            continue
        (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedFileError, match="a damaged file") as caught:
            load_capture(folder)
        assert caught.value.code == "file-damaged"
        assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["call.json", "tensors.safetensors"])
@pytest.mark.parametrize("left", [0, 1, 100])
def test_a_truncated_file_is_a_damaged_file(folder: Path, name: str, left: int) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:left])
    with pytest.raises(DamagedFileError) as caught:
        load_capture(folder)
    assert caught.value.code == "file-damaged"


def test_a_capture_without_its_checksum_is_damaged(folder: Path) -> None:
    document = json.loads((folder / "call.json").read_text())
    del document["checksum"]
    (folder / "call.json").write_text(json.dumps(document))
    with pytest.raises(DamagedFileError, match="checksum is missing"):
        load_capture(folder)


def test_a_capture_of_the_first_format_is_read_and_told_apart(folder: Path) -> None:
    document = json.loads((folder / "call.json").read_text())
    del document["checksum"], document["files"]
    (folder / "call.json").write_text(json.dumps(document | {"format": 1}))
    replays = list(replay_directory(folder, run_times=0))
    assert replays[0].is_right
    assert "1 are of a version without checksums" in replay_report(replays, "npu").summary


def test_a_directory_without_captures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorInputError, match="found none") as caught:
        find_captures(tmp_path)
    assert caught.value.code == "capture-unreadable"


def test_what_has_no_place_in_the_format_is_left_out_and_counted(tmp_path: Path) -> None:
    x = torch.eye(3, device="npu").to_sparse()
    with OpCapture(tmp_path / "calls", ["neg"]) as tool:
        torch.neg(x)
    assert (tool.store.saved, tool.store.not_writable) == (0, 1)

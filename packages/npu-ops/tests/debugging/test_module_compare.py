from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from npu_ops.debugging import ModuleCompare, ModuleRun
from npu_ops.errors import DamagedFileError, OperatorInputError, VerificationError


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 2)
    )


def recorded(module: torch.nn.Module, device: str = "cpu", *, is_trained: bool = True) -> ModuleRun:
    module = module.to(device)
    x = torch.linspace(-1, 1, 12).view(3, 4).to(device)
    with ModuleRun.of(module) as run:
        result = module(x)
        if is_trained:
            result.square().sum().backward()
    return run


class Scaled(torch.autograd.Function):
    """Right going forward, wrong going backward."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class WrongBackward(torch.nn.Module):
    def forward(self, x):
        return Scaled.apply(x)


class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2


def test_devices_agree_also_where_a_layer_writes_in_place() -> None:
    found = ModuleCompare(recorded(model(), "npu"), recorded(model()))
    assert found.passed, found.report()
    assert found.first_difference is None
    layers = [layer.layer for layer in found.layers if layer.kind == "activation"]
    assert layers == ["0", "1", "2", "(the module itself)"]


def test_the_first_layer_going_forward_is_named() -> None:
    broken = model()
    with torch.no_grad():
        broken[2].weight[0, 0] += 1
    found = ModuleCompare(recorded(broken), recorded(model()))
    first = found.first_difference
    assert first is not None
    assert (first.kind, first.layer) == ("activation", "2")
    with pytest.raises(VerificationError, match="the first is the activation of 2") as caught:
        found.raise_if_failed()
    assert caught.value.code == "module-differs"


def test_a_wrong_backward_shows_in_the_gradients_alone() -> None:
    first, last = (torch.nn.Linear(4, 4) for _ in range(2))
    runs = [
        recorded(torch.nn.Sequential(first, middle, last)) for middle in (WrongBackward(), Twice())
    ]
    found = ModuleCompare(*runs)
    bad = [(layer.kind, layer.layer) for layer in found.layers if not layer.seen.passed]
    # The gradient of the middle's result is right; the result of its backward is not.
    assert bad[0] == ("gradient", "0")
    assert ("gradient", "1") not in bad
    assert not any(kind == "activation" for kind, _ in bad)


def test_a_layer_that_is_called_twice_is_told_apart() -> None:
    layer = torch.nn.Linear(4, 4)
    run = recorded(torch.nn.Sequential(layer, layer), is_trained=False)
    assert [key[:2] for key in run.activations if key[0] == "0"] == [("0", 0), ("0", 1)]
    assert run.gradients == run.parameters == {}


def test_a_run_comes_back_from_a_file(tmp_path: Path) -> None:
    run = recorded(model(), "npu")
    run.save(tmp_path / "run.safetensors")
    read = ModuleRun.load(tmp_path / "run.safetensors")
    assert list(read.activations) == list(run.activations)
    assert list(read.gradients) == list(run.gradients)
    assert ModuleCompare(read, recorded(model())).passed


def test_a_file_that_holds_no_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"nothing")
    with pytest.raises(OperatorInputError, match="must be a run") as caught:
        ModuleRun.load(tmp_path / "file")
    assert caught.value.code == "module-run"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    both_ends = os.open(tmp_path / "pipe", os.O_RDWR)  # so that nobody waits here in any case
    with pytest.raises(OperatorInputError, match="the file does not exist") as caught:
        ModuleRun.load(tmp_path / "pipe")
    os.close(both_ends)
    assert caught.value.code == "module-run"


def test_runs_of_two_modules_are_not_compared() -> None:
    other = recorded(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    with pytest.raises(OperatorInputError, match="must be of the same module") as caught:
        ModuleCompare(recorded(model()), other)
    assert caught.value.code == "module-run"


def test_a_flipped_byte_of_a_run_is_a_damaged_file(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    recorded(model()).save(file)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedFileError, match="its tensors differ from those written") as caught:
        ModuleRun.load(file)
    assert caught.value.code == "file-damaged"

"""Replayed calls: wrong results are found, and incomparable ones do not fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from npu_ops.debugging import OpAutoCompare, OpCapture, Replay, replay_directory, replay_report
from npu_ops.debugging.capture_folders import find_captures
from npu_ops.debugging.capture_format import load_capture, save_capture


def replayed(
    place: Path, program: Callable[[], Any], device: str = "npu"
) -> tuple[list[Replay], str]:
    with OpCapture(place / "calls"):
        program()
    replays = list(replay_directory(place / "calls", device, run_times=0))
    return replays, replay_report(replays, device).summary


def recorded(replays: list[Replay]) -> dict[str, str]:
    return {replay.capture.op: replay.recorded for replay in replays}


RANDOM: dict[str, Callable[[str], Any]] = {
    "uniform_": lambda device: torch.zeros(40, device=device).uniform_(),
    "normal_": lambda device: torch.zeros(40, device=device).normal_(),
    "dropout": lambda device: torch.dropout(torch.ones(40, device=device), 0.5, True),
    "bernoulli": lambda device: torch.bernoulli(torch.full((40,), 0.5, device=device)),
    "randn": lambda device: torch.randn(40, device=device),
    "randperm": lambda device: torch.randperm(40, device=device),
    "multinomial": lambda device: torch.multinomial(torch.ones(40, device=device), 20),
    "generator": lambda device: torch.rand(
        40, device=device, generator=torch.Generator(device).manual_seed(3)
    ),
}


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("draw", RANDOM.values(), ids=RANDOM)
def test_random_numbers_come_from_the_stream_of_the_device_that_drew_them(
    tmp_path: Path, draw: Callable[[str], Any], device: str
) -> None:
    torch.manual_seed(8)
    torch.npu.manual_seed(9)
    replays, summary = replayed(tmp_path, lambda: draw(device))
    assert all(replay.is_right for replay in replays), summary
    assert set(recorded(replays).values()) <= {"same", "not comparable"}
    assert "differs" not in summary
    drawn = [one for one in replays if "empty" not in one.capture.op]
    assert {replay.recorded for replay in drawn} == {"same"}


def test_a_call_whose_tensors_were_on_the_cpu_says_nothing_of_the_device(tmp_path: Path) -> None:
    replays, _ = replayed(tmp_path, lambda: torch.zeros(8).uniform_().exp())
    assert {replay.verdict.status for replay in replays} == {"not compared"}
    assert {replay.verdict.problem for replay in replays} == {
        "its tensors were on the CPU, and stay there"
    }


def with_other_result(
    place: Path, change: Callable[[torch.Tensor], torch.Tensor], number: int = 0
) -> Path:
    """The capture in a directory, written again as if one of its results had been another."""
    capture = load_capture(find_captures(place / "calls")[0])
    storages = list(capture.after.storages)
    values = storages[number].data.view(capture.after.images[number].dtype)
    storages[number] = replace(storages[number], data=change(values).view(torch.uint8))
    after = replace(capture.after, storages=tuple(storages))
    folder = place / f"changed-{len(list(place.iterdir()))}"
    save_capture(replace(capture, after=after), folder)
    return folder


def test_random_numbers_of_another_version_are_not_comparable(tmp_path: Path) -> None:
    with OpCapture(tmp_path / "calls", ["rand"]):
        torch.rand(40, device="npu")
    folder = with_other_result(tmp_path, lambda values: values.flip(0))
    replays = list(replay_directory(folder, run_times=0))
    assert [(one.recorded, one.is_right) for one in replays] == [("not comparable", True)]
    assert "1 not comparable with the record" in replay_report(replays, "npu").summary


def test_random_numbers_that_were_found_wrong_stay_wrong(tmp_path: Path, plant: Any) -> None:
    plant("bernoulli.p", lambda x, p, *, generator=None: torch.ones(8).to("npu"))
    with OpAutoCompare(captures=tmp_path):
        torch.bernoulli(torch.zeros(8, device="npu"), 0.5)
    (replay,) = replay_directory(tmp_path, "cpu", run_times=0)
    assert (replay.recorded, replay.is_right) == ("differs", False)


def test_another_order_of_summation_is_no_difference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 8192), torch.randn(8192, 16)
    with OpCapture(tmp_path / "calls", ["mm"]):
        a.to("npu") @ b.to("npu")
    folder = with_other_result(
        tmp_path, lambda _: torch.bmm(a.view(16, 64, -1).transpose(0, 1), b.view(64, -1, 16)).sum(0)
    )
    (replay,) = replay_directory(folder, run_times=0)
    assert replay.recorded == "close", replay.verdict
    folder = with_other_result(tmp_path, lambda values: values + 1e-2)
    (replay,) = replay_directory(folder, run_times=0)
    assert replay.recorded == "differs"


def test_parts_that_an_op_does_not_write_are_not_compared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, 2, 3, device="npu").log_softmax(2)
    targets = torch.tensor([[1, 2], [1, 0]], device="npu")
    with OpCapture(tmp_path / "calls", ["_ctc_loss"]):
        torch.ops.aten._ctc_loss(scores, targets, [6, 4], [2, 1])
    folder = with_other_result(tmp_path, torch.zeros_like, number=1)
    (replay,) = replay_directory(folder, run_times=0)
    assert replay.is_right


def _from_elsewhere(
    x: torch.Tensor, low: float = 0, high: float = 1, *, generator: Any = None
) -> torch.Tensor:
    return x.copy_(torch.rand(x.shape, generator=torch.Generator().manual_seed(77)))


def test_a_device_that_draws_from__from_elsewhere_is_found(tmp_path: Path, plant: Any) -> None:
    plant("uniform_", _from_elsewhere)
    replays, _ = replayed(tmp_path, lambda: torch.zeros(40, device="npu").uniform_())
    (wrong,) = [replay for replay in replays if not replay.is_right]
    assert wrong.capture.op == "aten.uniform_.default"
    assert wrong.verdict.status == "differs"

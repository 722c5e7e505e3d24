"""A training step of BERT: captured and made again, compared, timed and cast; and as a module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from npu_ops.debugging import (
    ModuleCompare,
    ModuleRun,
    OpAutoCompare,
    OpCapture,
    OpFallback,
    OpTimeMeasure,
    replay_directory,
)

Step = Callable[[], torch.Tensor]


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
    )


def batch(device: str) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.arange(16).reshape(2, 8).to(device),
        "labels": torch.tensor([0, 1]).to(device),
    }


@pytest.fixture
def step() -> Step:
    """One step with dropout, gradients and an optimizer, from the same random state each time."""
    model = bert().to("npu").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> torch.Tensor:
        torch.npu.manual_seed(5)
        loss = model(**batch("npu")).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach().cpu()

    return run


def test_every_captured_op_of_a_step_replays_to_the_same_values(step: Step, tmp_path: Path) -> None:
    with OpCapture(tmp_path / "calls") as tool:
        step()
    replays = list(replay_directory(tmp_path / "calls", "npu", run_times=0))
    assert len(replays) == tool.store.saved > 200
    assert {replay.capture.facts["phase"] for replay in replays} == {"forward", "backward"}
    others = [replay.capture.op for replay in replays if replay.recorded != "same"]
    assert {op for op in others if ".empty" not in op} == set()
    assert all(replay.is_right for replay in replays)


def test_a_captured_gradient_shares_its_number_with_its_op(step: Step, tmp_path: Path) -> None:
    with OpCapture(tmp_path / "calls", ["gelu", "gelu_backward"]):
        step()
    forward, backward = (
        replay.capture for replay in replay_directory(tmp_path / "calls", run_times=0)
    )
    assert (forward.op, backward.op) == ("aten.gelu.default", "aten.gelu_backward.default")
    assert backward.facts["node"] == "GeluBackward0"
    assert forward.facts["sequence"] == backward.facts["sequence"]


def test_captures_stay_within_their_budget(step: Step, tmp_path: Path) -> None:
    budget = 300_000
    with OpCapture(tmp_path / "calls", budget_bytes=budget) as tool:
        step()
    on_disk = sum(file.stat().st_blocks * 512 for file in (tmp_path / "calls").rglob("*"))
    assert 0 < on_disk <= budget
    assert tool.store.written_bytes <= budget
    assert tool.store.over_budget > 0
    assert "left out" in tool.report().summary


def test_no_op_of_a_step_is_a_false_alarm(step: Step) -> None:
    with OpAutoCompare() as tool:
        step()
    assert tool.passed, tool.report()
    phases = {row[1] for row in tool.report().rows}
    assert phases == {"forward", "backward"}


def test_observed_steps_compute_what_unobserved_ones_do(tmp_path: Path) -> None:
    losses = []
    for tools in ((), (OpTimeMeasure(), OpCapture(tmp_path / "calls"), OpAutoCompare())):
        model = bert().to("npu").train()
        torch.npu.manual_seed(5)
        for tool in tools:
            tool.start()
        loss = model(**batch("npu")).loss
        loss.backward()
        for tool in reversed(tools):
            tool.stop()
        losses.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(left, right) for left, right in zip(*losses, strict=True))


def test_a_step_on_the_cpu_op_by_op_ends_with_the_same_loss(step: Step) -> None:
    model = bert().to("npu").train()
    torch.npu.manual_seed(5)
    with OpFallback() as tool:
        loss = model(**batch("npu")).loss
    assert torch.equal(loss.detach().cpu(), step())
    assert tool.counts["aten.native_dropout.default"] > 0


def test_layers_of_two_devices_agree_forward_and_backward() -> None:
    runs = []
    for device, dtype in (("npu", torch.float32), ("cpu", torch.float64)):
        model = bert().eval().to(device, dtype)
        with ModuleRun.of(model) as run:
            model(**batch(device)).loss.backward()
        runs.append(run)
    found = ModuleCompare(*runs)
    assert found.passed, found.report()
    assert {layer.kind for layer in found.layers} == {"activation", "gradient", "parameter"}


def test_the_first_layer_that_parts_is_named() -> None:
    runs = []
    for is_broken in (True, False):
        model = bert().eval()
        if is_broken:
            with torch.no_grad():
                model.bert.encoder.layer[0].intermediate.dense.bias.add_(0.01)
        with ModuleRun.of(model) as run:
            model(**batch("cpu")).loss.backward()
        runs.append(run)
    first = ModuleCompare(*runs).first_difference
    assert first is not None
    assert (first.kind, first.layer) == ("activation", "bert.encoder.layer.0.intermediate.dense")

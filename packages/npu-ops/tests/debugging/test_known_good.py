"""A sound training run, as people write them, under each tool: none of them raises an alarm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npu_ops.cli import main

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.use_deterministic_algorithms(True)  # so that memory which nothing wrote is NaN
torch.manual_seed(0)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.first = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 16)
        self.bias = nn.Parameter(torch.empty(8))
        nn.init.trunc_normal_(self.bias, std=0.02)

    def forward(self, tokens):
        x = F.dropout(self.embedding(tokens), 0.1, self.training)
        q, k, v = self.first(x).chunk(3, -1)
        size = tokens.shape[1]
        mask = torch.full((size, size), float("-inf"), device=x.device).triu(1)
        weights = F.dropout((q @ k.mT / 8**0.5 + mask).softmax(-1), 0.1, self.training)
        return self.last(self.norm(x + weights @ v + self.bias))


if __name__ == "__main__":
    model = Decoder().to("npu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randint(0, 16, (6, 5)))
    for (tokens,) in DataLoader(data, batch_size=3, shuffle=True):
        tokens = tokens.to("npu")
        with torch.autocast("npu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    cache = torch.empty(3, 8, 8, device="npu")  # filled by steps, as a cache of keys is
    for step in range(3):
        cache[:, step] = torch.randn(3, 8, device="npu")
        known = cache[:, : step + 1]
        (known @ known.mT).softmax(-1).sum().item()
    generator = torch.Generator("npu").manual_seed(1)
    torch.multinomial(model(tokens)[0, -1].softmax(-1), 1, generator=generator)
    print("loss", loss.item())
"""


def test_a_sound_training_run_is_no_alarm_of_any_tool(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = ["--overflow", "--capture", "--autocompare", "-o", "out"]
    assert main(["run", *tools, script]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().err
    assert "calls compared, 0 differ" in shown
    assert "the first that made it" not in shown
    assert main(["replay", "out/captures", "--acc-check"]) == 0, capsys.readouterr().out
    assert ", 0 differ, " in capsys.readouterr().out


def test_a_fault_in_the_same_run_is_found_by_each_tool(
    script: str, plant: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        weights = torch.softmax(x.cpu(), dim)
        return torch.where(weights == 0, 0 / weights, weights).to("npu")  # 0 / 0 if masked

    plant("_softmax", softmax)
    tools = ["--overflow", "--capture", "--autocompare", "-o", "out"]
    assert main(["run", *tools, script]) == 1
    shown = capsys.readouterr().err
    assert "differ; the first is aten._softmax.default" in shown
    assert "the first that made it is aten._softmax.default" in shown
    assert main(["replay", "out/captures", "--acc-check", "--device", "cpu"]) == 1

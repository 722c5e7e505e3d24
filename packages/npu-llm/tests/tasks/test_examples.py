"""Inputs to trace with are made from a model's signature."""

from __future__ import annotations

import pytest
import torch

from npu_llm.errors import CaptureError
from npu_llm.tasks.examples import make_example


class _Foreign(torch.nn.Module):
    def forward(self, graph):
        return graph


def test_model_that_reads_something_else_is_refused():
    with pytest.raises(CaptureError, match="graph") as caught:
        make_example(_Foreign())
    assert caught.value.code == "model-inputs"

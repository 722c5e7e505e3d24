import pytest
import torch

from npu_llm.steps.step_cache import run_step
from npu_runtime import observe


class Stub:
    """A cache that answers with what it was given."""

    def step(self, values, device):
        return values["input_ids"].float().to(device)


@pytest.mark.parametrize("past, phase", [(0, "prefill"), (7, "decode")])
def test_step_is_one_span(past, phase):
    spans = []
    observe.add_listener(spans.extend)
    try:
        ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
        result = run_step(Stub(), {"input_ids": ids}, past=past, device="cpu")
    finally:
        observe.remove_listener(spans.extend)
    assert result.tolist() == ids.tolist()
    (span,) = spans
    assert (span.category, span.name) == (phase, f"{phase} 3 tokens")
    assert span.args == {"batch": 2, "tokens": 3, "past": past}

"""Traced masks and experts: the same results with any transformers release."""

import pytest
import torch
import transformers

from npu_llm.capture.step import capture_step
from npu_llm.older_transformers import as_in_newer

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}


def make(name, **changes):
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**_SIZES, **changes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")  # as npu_llm.checkpoint.loading does
    return model


@pytest.mark.parametrize(
    "name, changes",
    [
        ("Mixtral", {"num_local_experts": 4}),
        ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False}),
        ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}),
        ("Qwen2Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}),
    ],
    ids=["mixtral", "olmoe", "olmoe-normed", "qwen2-moe"],
)
def test_captured_experts_give_the_numbers_of_the_model(name, changes):
    model = make(name, **changes)
    captured = capture_step(model)
    ids = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    past = [torch.zeros(2, heads, 0, size) for heads, size in captured.caches]
    logits, *_ = captured.graph_module(ids, mask, positions, torch.arange(9), *past)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, position_ids=positions).logits
    seen = mask.bool()
    torch.testing.assert_close(logits[seen], expected[seen], rtol=1e-4, atol=1e-4)


def test_what_stands_in_is_gone_after_the_capture():
    model = make("Olmoe", num_experts=4, num_experts_per_tok=2)
    before = [set(vars(module)) for module in model.modules()]
    forwards = [type(module).forward for module in model.modules()]
    with pytest.raises(RuntimeError, match="in the middle"), as_in_newer(model):
        raise RuntimeError("in the middle")
    assert [set(vars(module)) for module in model.modules()] == before
    assert [type(module).forward for module in model.modules()] == forwards

import pytest
import torch
import transformers
from transformers.integrations import sdpa_attention

from npu_llm.capture.patches import all_experts, grouped_heads
from npu_llm.capture.step import capture_step


def test_a_query_of_one_token_keeps_its_heads(tiny):
    graph = capture_step(tiny("lfm2").reference).graph_module.graph
    (call,) = graph.find_nodes(
        op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default
    )
    assert call.args[0].meta["val"].shape[1:] == (4, 1, 8)


def test_the_choice_is_transformers_own_again_afterwards():
    before = sdpa_attention.use_gqa_in_sdpa
    with grouped_heads():
        assert sdpa_attention.use_gqa_in_sdpa is not before
    assert sdpa_attention.use_gqa_in_sdpa is before


SIZES = {
    "vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "intermediate_size": 40, "num_local_experts": 5, "num_experts_per_tok": 3, "kv_channels": 6,
}  # fmt: skip


def jetmoe():
    return transformers.JetMoeForCausalLM(transformers.JetMoeConfig(**SIZES))


def dbrx():
    experts = {"hidden_size": 24, "ffn_hidden_size": 40, "moe_num_experts": 5, "moe_top_k": 3}
    config = transformers.DbrxConfig(
        vocab_size=97, d_model=24, n_heads=4, n_layers=2, ffn_config=experts,
        attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 4.0},
    )  # fmt: skip
    return transformers.DbrxForCausalLM(config)


@pytest.mark.parametrize("make", [jetmoe, dbrx])
def test_all_experts_give_what_the_chosen_ones_give(make):
    torch.manual_seed(4)
    model = make().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(3, 97, (2, 7))
    forward = type(model.model if make is jetmoe else model.transformer).forward
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        with all_experts(model):
            got = model(ids, use_cache=False).logits
        again = model(ids, use_cache=False).logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(again, expected)
    assert type(model.model if make is jetmoe else model.transformer).forward is forward

import torch
from transformers.integrations import sdpa_attention

from npu_llm.capture.stand_ins.grouped_heads import grouped_heads
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

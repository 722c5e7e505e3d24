"""Architectures with small random weights give the same tokens as transformers in fp32."""

import inspect

import pytest
import torch

# Through the NPU plugin: one whose attention is taken apart, one with windows and bent scores, so
# that its cache is joined, one that counts along its mask, one with experts.
ON_NPU_PLUGIN = ("bloom", "gemma2", "llama", "qwen3_moe")


def assert_greedy_tokens_are_transformers(pair, pipeline):
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (1, 21))
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    expected = pair.reference.generate(ids, attention_mask=torch.ones_like(ids), **options)
    model = pair.ours("float32", pipeline)
    assert model.pipeline == pipeline
    got = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert got.tolist() == expected.tolist()


def test_greedy_tokens_equal_those_of_transformers(tiny, sampled_architecture, openvino_pipeline):
    assert_greedy_tokens_are_transformers(tiny(sampled_architecture), openvino_pipeline)


def test_greedy_tokens_of_static_programs_equal_them_too(tiny, sampled_architecture):
    assert_greedy_tokens_are_transformers(tiny(sampled_architecture), "static")


@pytest.mark.parametrize("name", ON_NPU_PLUGIN)
def test_static_programs_run_unchanged_in_the_npu_plugin(tiny, name, on_npu_plugin):
    pair = tiny(name)
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (1, 21))
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    expected = pair.reference.generate(ids, attention_mask=torch.ones_like(ids), **options)
    model = on_npu_plugin(pair.ours("float32", "static"))
    got = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert got.tolist() == expected.tolist()


def test_logits_of_a_padded_batch_equal_those_of_transformers(
    tiny, sampled_architecture, each_openvino_pipeline, logit_tolerance
):
    pair = tiny(sampled_architecture)
    torch.manual_seed(2)
    ids = torch.randint(3, 97, (3, 12))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    mask[2, :1] = 0
    # Some models count positions over the padding by default; generate passes positions.
    arguments = {"attention_mask": mask}
    if "position_ids" in inspect.signature(pair.reference.forward).parameters:
        arguments["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        expected = pair.reference(ids, **arguments).logits
    got = pair.ours("float32", each_openvino_pipeline)(ids, attention_mask=mask).logits
    seen = mask.bool()
    tolerance = 2 * logit_tolerance
    torch.testing.assert_close(got[seen], expected[seen], rtol=logit_tolerance, atol=tolerance)


def test_steps_in_bfloat16_stay_near_those_in_fp32(tiny, sampled_architecture):
    # On the CPU plugin, attention with one query in bfloat16 was wrong outside the fused path with
    # the cache (OpenVINO 2026.4.1): relative errors of 1 and more.
    pair = tiny(sampled_architecture)
    torch.manual_seed(3)
    ids = torch.randint(3, 97, (2, 14))
    with torch.no_grad():
        expected = pair.reference(ids).logits
    output = pair.ours("bfloat16")(ids[:, :10])
    parts = [output.logits]
    for index in range(10, 14):
        step = ids[:, index : index + 1]
        output = pair.ours("bfloat16")(step, past_key_values=output.past_key_values)
        parts.append(output.logits)
    error = (torch.cat(parts, 1) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < 0.25

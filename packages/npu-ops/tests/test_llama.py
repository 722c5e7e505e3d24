import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture
def models():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    host = LlamaForCausalLM(config)
    return host, copy.deepcopy(host).to("npu")


@pytest.fixture
def tokens():
    return torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(1))


def test_forward_and_backward_equal_the_cpu_exactly(models, tokens):
    host, there = models
    expected = host(tokens, labels=tokens)
    got = there(tokens.to("npu"), labels=tokens.to("npu"))
    assert got.logits.device.type == "npu"
    assert torch.equal(got.logits.cpu(), expected.logits)
    assert got.loss.item() == expected.loss.item()
    expected.loss.backward()
    got.loss.backward()
    for (name, theirs), ours in zip(host.named_parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-6, atol=1e-6, msg=name)


def test_twenty_steps_of_training_follow_the_cpu_loss(models, tokens):
    def train(model, batch):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(batch, labels=batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

    host, there = models
    expected, got = train(host, tokens), train(there, tokens.to("npu"))
    assert expected[-1] < 0.8 * expected[0]
    assert max(abs(a - b) for a, b in zip(expected, got, strict=True)) < 1e-5


def test_greedy_generation_with_the_cache_equals_the_cpu(models, tokens):
    host, there = models
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    prompt = tokens[:1, :8]
    expected = host.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    prompt = prompt.to("npu")
    got = there.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    assert got.tolist() == expected.tolist()

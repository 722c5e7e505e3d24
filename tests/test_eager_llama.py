"""A transformers Llama, eagerly on npu, against the same weights on the CPU."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(scope="module")
def pair(tiny_llama_config):
    """The same random Llama on the CPU and on npu."""
    torch.manual_seed(0)
    on_cpu = LlamaForCausalLM(LlamaConfig(**tiny_llama_config)).float()
    return on_cpu, copy.deepcopy(on_cpu).to("npu")


@pytest.fixture
def tokens():
    return torch.randint(0, 128, (2, 24), generator=torch.Generator().manual_seed(1))


def test_moving_a_model_moves_every_tensor(pair):
    _, on_npu = pair
    assert {item.device.type for item in on_npu.state_dict().values()} == {"npu"}


def test_forward_equals_the_cpu(pair, tokens):
    on_cpu, on_npu = pair
    with torch.no_grad():
        expected = on_cpu(tokens).logits
        received = on_npu(tokens.to("npu")).logits
    assert received.device.type == "npu"
    torch.testing.assert_close(received.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_backward_equals_the_cpu(pair, tokens):
    on_cpu, on_npu = pair
    on_cpu(tokens, labels=tokens).loss.backward()
    moved = tokens.to("npu")
    on_npu(moved, labels=moved).loss.backward()
    for (name, expected), received in zip(
        on_cpu.named_parameters(), on_npu.parameters(), strict=True
    ):
        torch.testing.assert_close(
            received.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5, msg=name
        )


def test_generate_with_transformers_equals_the_cpu(pair, tokens):
    on_cpu, on_npu = pair
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = on_cpu.generate(tokens[:1], **options)
    received = on_npu.generate(tokens[:1].to("npu"), **options)
    assert received.cpu().tolist() == expected.tolist()


def test_twenty_steps_of_training_follow_the_cpu(tiny_llama_config, tokens):
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**tiny_llama_config)).float().to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batch = tokens.to(device)
        seen = []
        for _ in range(20):
            loss = model(batch, labels=batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    expected = losses("cpu")
    assert expected[-1] < expected[0] - 0.5
    assert losses("npu") == pytest.approx(expected, abs=1e-5)

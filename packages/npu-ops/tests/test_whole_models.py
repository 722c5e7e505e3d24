import copy

import pytest
import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    ResNetConfig,
    ResNetModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

TOKENS = torch.randint(0, 100, (2, 12), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def vit():
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    return ViTModel(config), {"pixel_values": IMAGES}


def resnet():
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return ResNetModel(config), {"pixel_values": IMAGES}


def t5():
    config = T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return T5ForConditionalGeneration(config), {"input_ids": TOKENS, "decoder_input_ids": TOKENS}


def mixtral():
    config = MixtralConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    return MixtralForCausalLM(config), {"input_ids": TOKENS}


@pytest.mark.parametrize("make", [vit, resnet, t5, mixtral], ids=lambda make: make.__name__)
def test_model_and_its_gradients_equal_the_cpu(make):
    torch.manual_seed(0)
    host, inputs = make()
    host.eval()
    there = copy.deepcopy(host).to("npu")
    expected = host(**inputs)[0]
    got = there(**{name: value.to("npu") for name, value in inputs.items()})[0]
    assert got.device.type == "npu"
    torch.testing.assert_close(got.cpu(), expected)
    expected.square().mean().backward()
    got.square().mean().backward()
    for (name, theirs), ours in zip(host.named_parameters(), there.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None
        else:
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6, msg=name)

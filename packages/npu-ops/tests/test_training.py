"""Fifty steps of training on npu follow the CPU's losses, for three architectures."""

import copy

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)

STEPS = 50


def resnet():
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="bottleneck", num_labels=4
    )
    images = torch.randn(STEPS, 4, 3, 32, 32)
    return ResNetForImageClassification(config), [
        {"pixel_values": batch, "labels": torch.arange(4)} for batch in images
    ]


def bert():
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        num_labels=2,
    )
    mask = torch.ones(4, 16, dtype=torch.int64)
    mask[1, 9:] = 0
    batches = torch.randint(0, 64, (STEPS, 4, 16))
    return BertForSequenceClassification(config), [
        {"input_ids": tokens, "attention_mask": mask, "labels": tokens[:, 0] % 2}
        for tokens in batches
    ]


def gpt2():
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    batches = torch.randint(0, 64, (STEPS, 4, 16))
    return GPT2LMHeadModel(config), [{"input_ids": tokens, "labels": tokens} for tokens in batches]


def losses_of(model, batches, device):
    """Losses of one step per batch. The dropout draws from the device's generator."""
    model = copy.deepcopy(model).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    losses = []
    for batch in batches:
        loss = model(**{name: value.to(device) for name, value in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return torch.tensor(losses)


@pytest.mark.parametrize("make", [resnet, bert, gpt2], ids=lambda make: make.__name__)
def test_losses_follow_the_cpus(make):
    torch.manual_seed(0)
    model, batches = make()
    expected = losses_of(model, batches, "cpu")
    got = losses_of(model, batches, "npu")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert expected[0] != expected[-1]

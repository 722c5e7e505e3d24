"""Model families, small and with random weights: compiled equals eager, in one program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers as tf

VOCABULARY = 128
DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
    "num_heads": 4, "use_cache": False,
}  # fmt: skip


def text() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (2, 16))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def padded() -> dict[str, torch.Tensor]:
    inputs = text()
    inputs["attention_mask"][0, 12:] = 0
    return inputs


def image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


def translation() -> dict[str, torch.Tensor]:
    return {**padded(), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 7))}


@dataclass(frozen=True)
class Family:
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]


FAMILIES = {
    "llama": Family(lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER)), text),
    "qwen2": Family(lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**DECODER)), text),
    "qwen3": Family(lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(head_dim=16, **DECODER)), text),
    "mistral": Family(lambda: tf.MistralForCausalLM(tf.MistralConfig(**DECODER)), padded),
    "gemma2": Family(lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(head_dim=16, **DECODER)), text),
    "phi3": Family(lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**DECODER)), text),
    "gpt2": Family(
        lambda: tf.GPT2LMHeadModel(
            tf.GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=64,
                n_layer=2,
                n_head=4,
                n_positions=128,
                use_cache=False,
                bos_token_id=1,
                eos_token_id=2,
            )
        ),
        text,
    ),
    "gpt_neox": Family(
        lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(use_cache=False, **ENCODER)), text
    ),
    "opt": Family(
        lambda: tf.OPTForCausalLM(
            tf.OPTConfig(
                vocab_size=VOCABULARY,
                hidden_size=64,
                ffn_dim=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                word_embed_proj_dim=64,
                max_position_embeddings=128,
                use_cache=False,
            )
        ),
        text,
    ),
    "bert": Family(lambda: tf.BertModel(tf.BertConfig(**ENCODER)), padded),
    "vit": Family(
        lambda: tf.ViTForImageClassification(
            tf.ViTConfig(
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=64,
                patch_size=16,
            )
        ),
        image,
    ),
    "resnet": Family(
        lambda: tf.ResNetForImageClassification(
            tf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2])
        ),
        image,
    ),
    "convnext": Family(
        lambda: tf.ConvNextForImageClassification(
            tf.ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
        ),
        image,
    ),
    "swin": Family(
        lambda: tf.SwinForImageClassification(
            tf.SwinConfig(
                image_size=64, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4
            )
        ),
        image,
    ),
    "t5_encoder": Family(lambda: tf.T5EncoderModel(tf.T5Config(**T5)), padded),
    "t5": Family(lambda: tf.T5ForConditionalGeneration(tf.T5Config(**T5)), translation),
}


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FAMILIES[name].make().eval(), FAMILIES[name].inputs()


def tensors(output: Any) -> list[torch.Tensor]:
    return [value for value in dict(output).values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", FAMILIES)
def test_family_is_one_program_and_equals_eager(compiled, close, name):
    # Devices alternate, so that both paths meet many families in half the time.
    device = ("cpu", "npu")[list(FAMILIES).index(name) % 2]
    model, inputs = build(name)
    with torch.no_grad():
        expected = tensors(model(**inputs))
        model = model.to(device)
        fast = compiled(model)
        placed = {key: value.to(device) for key, value in inputs.items()}
        first = tensors(fast(**placed))
        second = tensors(fast(**placed))
    assert fast.programs == 1
    assert fast.eager_ops == []
    assert {tensor.device.type for tensor in first} == {device}
    close(first, expected)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
        assert a.data_ptr() != b.data_ptr()


@pytest.mark.parametrize("name", ["llama", "bert", "vit"])
def test_half_precision_model_follows_float32(compiled, name):
    model, inputs = build(name)
    with torch.no_grad():
        expected = tensors(model(**inputs))[0]
        half = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs.items()}
        fast = compiled(model.bfloat16())
        result = tensors(fast(**half))[0]
        eager = tensors(model(**half))[0]
    assert fast.programs == 1
    assert fast.records[0].programs[0].precision == "bfloat16"
    assert result.dtype is torch.bfloat16
    # Not further from float32 than eager bfloat16 is, with some room for other roundings.
    error = (result.float() - expected).norm() / expected.norm()
    own = (eager.float() - expected).norm() / expected.norm()
    assert error <= 1.5 * own + 1e-3


def _loss(output: torch.Tensor) -> torch.Tensor:
    # Not the sum of squares: behind a last norm that is constant, and gradients would be noise.
    weights = torch.linspace(-1, 2, output.numel(), device=output.device)
    return (output.flatten() * weights).sum()


@pytest.mark.parametrize("name", ["llama", "bert", "resnet"])
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_training_step_equals_eager(compiled, name, device):
    model, inputs = build(name)
    _loss(tensors(model(**inputs))[0]).backward()
    expected = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model = model.to(device)
    fast = compiled(model)
    placed = {key: value.to(device) for key, value in inputs.items()}
    _loss(tensors(fast(**placed))[0]).backward()
    found = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    # AOTAutograd gives zeros where eager gives none.
    assert all(found[key].abs().max() == 0 for key in found.keys() - expected.keys())
    assert {record.kind for record in fast.records} == {"forward", "backward"}
    assert fast.programs >= 2
    # Some gradients are zero but for rounding (a key's bias): the largest one gives the scale.
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for key, reference in expected.items():
        scale = max(float(reference.abs().max()), 1e-3 * largest)
        assert float((found[key].cpu() - reference).abs().max()) <= 1e-4 * scale, key


def test_lengths_that_change_compile_a_dynamic_program_once(compiled, close):
    model, _ = build("bert")
    fast = compiled(model)
    with torch.no_grad():
        for length in (5, 9, 12, 3, 17):
            ids = torch.randint(3, VOCABULARY, (2, length))
            close(fast(input_ids=ids)[0], model(input_ids=ids)[0])
    # One for the first length, one for all others.
    assert len(fast.records) == 2
    assert fast.eager_ops == []

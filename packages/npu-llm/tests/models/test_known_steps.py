"""Predefined steps equal traced ones, and give transformers' results."""

import json

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from npu_llm.capture.functional import make_functional
from npu_llm.capture.step import capture_step
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.models.kernel_step import lower_step
from npu_llm.models.known_steps import known_decoder, parameter_shapes, write_step
from npu_llm.models.plain_decoder import plain_logits
from npu_llm.verification.reference import EagerWeights, Rounding

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 112, "max_position_embeddings": 768,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
WIDE = SIZES | {"head_dim": 32, "sliding_window": 13}
STRETCHED = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
LLAMA_3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 500000.0,
}  # fmt: skip
MULTIPLIERS = {
    "residual_multiplier": 0.3, "logits_scaling": 2.0, "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
}  # fmt: skip
CASES = {
    "llama 3.1": (
        "LlamaConfig",
        SIZES | {"rope_parameters": LLAMA_3, "attention_bias": True, "mlp_bias": True}
        | {"tie_word_embeddings": True},
    ),
    "mistral": ("MistralConfig", SIZES | {"sliding_window": 21}),
    "qwen 2": ("Qwen2Config", SIZES | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen 3": ("Qwen3Config", SIZES | {"head_dim": 32, "attention_bias": True}),
    "phi 3": ("Phi3Config", SIZES | {"sliding_window": 11}),
    "gemma": ("GemmaConfig", SIZES | {"head_dim": 32}),
    "gemma 2": ("Gemma2Config", WIDE | {"query_pre_attn_scalar": 77}),
    "gemma 3": (
        "Gemma3TextConfig", WIDE | {"num_hidden_layers": 7, "rope_parameters": STRETCHED}
    ),
    "smollm 3": ("SmolLM3Config", SIZES | {"num_hidden_layers": 4}),
    "olmo 2": ("Olmo2Config", SIZES),
    "granite": ("GraniteConfig", SIZES | MULTIPLIERS),
    "seed-oss": ("SeedOssConfig", SIZES | {"head_dim": 32, "attention_out_bias": True}),
}  # fmt: skip


class Held:
    """Parameters in memory."""

    def __init__(self, parameters):
        self._parameters = parameters

    def read(self, name):
        return self._parameters[name]

    def rows(self, name, indices):
        return self._parameters[name][indices]

    def parts(self, name):
        return self._parameters[name].split(50)


def renamed(lowered):
    """A program as text, with weights and sources numbered in the order of their use."""
    content = lowered.program.as_dict()
    recipes = content.pop("weights")
    del content["modules"]
    weights, sources, made = {}, {}, []

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, list):
            return [plain(one) for one in value]
        if not isinstance(value, str) or value not in recipes:
            return value
        if value not in weights:
            weights[value] = len(weights)
            recipe = recipes[value]
            used = [sources.setdefault(one, len(sources)) for one in recipe["sources"]]
            made.append({**recipe, "sources": used})
        return weights[value]

    return json.dumps([plain(content), made])


@pytest.mark.parametrize("case", CASES)
def test_a_written_step_is_the_traced_one(case):
    name, sizes = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**sizes, initializer_range=0.3)
    model = AutoModelForCausalLM.from_config(config).eval()
    parameters = {
        name: one.detach() for name, one in model.named_parameters(remove_duplicate=False)
    }
    for vector in parameters.values():
        if vector.dim() == 1:
            vector += 0.2 * torch.randn(vector.shape)
    decoder = known_decoder(config.to_dict())
    captured = capture_step(model)
    make_functional(captured.graph_module)
    traced = lower_step(captured, 768)
    written = write_step(decoder, parameters, positions=768)
    assert renamed(written) == renamed(traced)
    for pair in zip(written.tables.values(), traced.tables.values(), strict=True):
        assert torch.equal(*pair)

    shapes = {name: tuple(one.shape) for name, one in parameters.items()}
    if decoder.is_tied:
        del shapes["lm_head.weight"]
    assert parameter_shapes(decoder) == shapes

    ids, rows = torch.randint(0, 112, (31,)), (0, 3, 17, 30)
    rounding = Rounding(torch.bfloat16, 32)
    found = plain_logits(decoder, Held(parameters), ids, rows, rounding=rounding)
    with torch.no_grad():
        exact = model(ids[None]).logits[0, list(rows)]
        with EagerWeights(StreamedWeights(), rounding=rounding):
            rounded = model(ids[None]).logits[0, list(rows)]
    assert torch.allclose(found[0], exact, atol=1e-5 * float(exact.abs().max()), rtol=0)
    sizes = [float((one - exact).norm() / exact.norm()) for one in (found[1], rounded)]
    assert 0.5 < sizes[0] / sizes[1] < 2


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mamba"},
        {"hidden_act": "relu2"},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ],
)
def test_what_is_not_known_is_traced(changes):
    config = transformers.LlamaConfig(**SIZES).to_dict() | changes
    assert known_decoder(config) is None

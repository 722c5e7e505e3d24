"""Kernel programs of the families that people have: the tokens are transformers'."""

import shutil

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from npu_llm import NPUModelForCausalLM
from npu_llm.errors import OptionError

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 112, "max_position_embeddings": 768,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
GPT = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 112, "n_positions": 768,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 500000.0,
}  # fmt: skip
FAMILIES = {
    "llama 3 with biases, tied": (
        "LlamaConfig",
        SIZES | {"rope_parameters": LLAMA3}
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralConfig", SIZES | {"sliding_window": 21}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 16}),
    "phi3": ("Phi3Config", SIZES),
    "gemma2": ("Gemma2Config", SIZES | {"head_dim": 32, "sliding_window": 13}),
    "gemma3": ("Gemma3TextConfig", SIZES | {"head_dim": 32, "sliding_window": 13}),
    "smollm3": ("SmolLM3Config", SIZES),
    "olmo2": ("Olmo2Config", SIZES),
    "granite": ("GraniteConfig", SIZES | {"residual_multiplier": 0.3, "logits_scaling": 2.0}),
    "starcoder2": ("Starcoder2Config", SIZES | {"sliding_window": 40}),
    "gpt2": ("GPT2Config", GPT),
    "gptj": ("GPTJConfig", GPT | {"rotary_dim": 8}),
    "gpt_neox": ("GPTNeoXConfig", SIZES),
    "stablelm": ("StableLmConfig", SIZES),
    "phi": ("PhiConfig", SIZES),
    "mixtral": ("MixtralConfig", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        SIZES | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 32},
    ),
    "gpt_oss": (
        "GptOssConfig",
        SIZES | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
        | {"sliding_window": 13},
    ),
    "opt": ("OPTConfig", SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 32}),
    "opt, norms behind": (
        "OPTConfig",
        SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 64, "do_layer_norm_before": False},
    ),
    "falcon": ("FalconConfig", SIZES),
    "falcon, all heads": (
        "FalconConfig", SIZES | {"multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "falcon, groups": (
        "FalconConfig", SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "bloom": ("BloomConfig", SIZES | {"n_layer": 2, "n_head": 4}),
    "mpt": ("MptConfig", SIZES | {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 768}),
    "cohere": ("CohereConfig", SIZES | {"use_qk_norm": True}),
    "cohere2": ("Cohere2Config", SIZES | {"head_dim": 16, "sliding_window": 13}),
    "arcee": ("ArceeConfig", SIZES),
    "nemotron": ("NemotronConfig", SIZES | {"head_dim": 16}),
    "glm": ("GlmConfig", SIZES | {"head_dim": 16}),
    "olmo": ("OlmoConfig", SIZES),
    "exaone4": ("Exaone4Config", SIZES | {"head_dim": 16, "sliding_window": 13}),
    "codegen": ("CodeGenConfig", GPT | {"rotary_dim": 8}),
    "gpt_bigcode": ("GPTBigCodeConfig", GPT),
    "gpt_neo": (
        "GPTNeoConfig",
        SIZES | {"window_size": 13, "attention_types": [[["global", "local"], 1]]},
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 48},
    ),
    "stablelm, norms by head": (
        "StableLmConfig", SIZES | {"qk_layernorm": True, "use_parallel_residual": True},
    ),
    "phi, norms by head": ("PhiConfig", SIZES | {"qk_layernorm": True}),
}  # fmt: skip
# Others differ from these in what one of these has.
SELDOM = {
    "opt, norms behind", "falcon, all heads", "mpt", "cohere2", "arcee", "nemotron", "glm", "olmo",
    "exaone4", "codegen", "gpt_bigcode", "gpt_neo", "qwen2_moe", "stablelm, norms by head",
    "phi, norms by head", "gptj", "qwen2", "stablelm", "mixtral", "falcon",
}  # fmt: skip
GREEDY = {"do_sample": False, "max_new_tokens": 6}


def made(family, **changes):
    """A small model of transformers with random weights."""
    name, sizes = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**sizes, "initializer_range": 0.3, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # biases, norms and sinks that are not all zeros or ones
        for vector in model.parameters():
            if vector.dim() == 1 or vector.abs().max() == 0:
                vector += 0.2 * torch.randn(vector.shape)
    return model


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.long if name in SELDOM else ()) for name in FAMILIES
    ],
)
def family(request, tmp_path_factory):
    """transformers' model in float32, and ours."""
    model = made(request.param)
    folder = tmp_path_factory.mktemp("family")
    model.save_pretrained(folder / "model")
    ours = NPUModelForCausalLM.from_pretrained(
        folder / "model", dtype="float32", pipeline="kernels", cache_dir=folder / "cache"
    )
    return model, ours


def tokens(rows, count):
    generator = torch.Generator().manual_seed(count)
    return torch.randint(1, 112, (rows, count), generator=generator)


def test_greedy_tokens_are_those_of_transformers(family):
    theirs, ours = family
    for count in (1, 17, 40, 700):
        ids = tokens(1, count)
        expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
        assert ours.generate(ids, **GREEDY).tolist() == expected.tolist()


def test_batches_of_unequal_lengths_and_beams(family):
    theirs, ours = family
    ids = tokens(3, 11)
    mask = torch.ones_like(ids)
    mask[1, :4], mask[2, :9] = 0, 0
    for how in ({}, {"num_beams": 3}):
        expected = theirs.generate(ids, attention_mask=mask, **GREEDY, **how)
        assert (
            ours.generate(ids, attention_mask=mask, **GREEDY, **how).tolist() == expected.tolist()
        )


def test_a_program_is_compared_with_torch(family):
    _, ours = family
    assert ours.pipeline == "kernels"
    assert ours.verification.status == "right"


@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("llama", "bfloat16"), ("llama", "int4"), ("gpt2", "float16"), ("gpt2", "int8"),
        ("gpt_neox", "int4"), ("qwen3_moe", "int8"),
    ],
)  # fmt: skip
def test_fewer_bits_are_compared_with_torch_too(tmp_path, save_tiny, kind, dtype):
    wide = {"hidden_size": 128, "intermediate_size": 256}
    if kind == "gpt2":
        wide = {"n_embd": 128, "n_inner": 256}
    if kind == "qwen3_moe":
        wide |= {"moe_intermediate_size": 64}
    save_tiny(kind, tmp_path / "model", vocab_size=400, **wide)
    model = NPUModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=dtype, pipeline="kernels", cache_dir=tmp_path / "cache"
    )
    assert model.verification.status == "right"
    assert model.generate(tokens(1, 9), **GREEDY).shape[1] > 9


@pytest.mark.parametrize("dtype", ["bfloat16", "int4"])
def test_experts_with_biases_and_turned_weights_have_fewer_bits_too(tmp_path, dtype):
    model = made("gpt_oss", hidden_size=128, intermediate_size=64)
    model.save_pretrained(tmp_path / "model")
    ours = NPUModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=dtype, pipeline="kernels", cache_dir=tmp_path / "cache"
    )
    assert ours.verification.status == "right"


@pytest.mark.parametrize("first", ["auto", "dynamic"])
def test_a_model_that_is_no_kernel_program_is_built_once(tmp_path, save_tiny, first):
    # Its slopes are rounded to bfloat16, so that a long way is not linear in the distance.
    save_tiny("falcon", tmp_path / "model", alibi=True, max_position_embeddings=768)
    second = "dynamic" if first == "auto" else "auto"

    def load(pipeline):
        return NPUModelForCausalLM.from_pretrained(
            tmp_path / "model", dtype="float32", pipeline=pipeline, cache_dir=tmp_path / "cache"
        )

    def assert_refused():
        with pytest.raises(OptionError, match="modeling_falcon") as caught:
            load("kernels")
        assert caught.value.code == "no-kernels"

    if first == "auto":
        assert_refused()
    ids = torch.tensor([[5, 9, 3]])
    models = {pipeline: load(pipeline) for pipeline in (first, second)}
    assert len(list((tmp_path / "cache").rglob("step.bin"))) == 1
    assert models["auto"].pipeline == models["dynamic"].pipeline == "dynamic"
    assert "modeling_falcon" in models["auto"].why_not_kernels
    assert models["dynamic"].why_not_kernels is None
    assert torch.equal(models["auto"](ids).logits, models["dynamic"](ids).logits)
    again = load("auto")
    assert again.report.entry_from_cache
    assert "modeling_falcon" in again.why_not_kernels
    assert_refused()  # also from the cache
    if first == "auto":
        return
    # What it refers to may be gone: then it is built.
    for folder in (tmp_path / "cache").iterdir():
        if (folder / "step.bin").exists():
            shutil.rmtree(folder)
    assert load("auto").pipeline == "dynamic"
    assert len(list((tmp_path / "cache").rglob("step.bin"))) == 1

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
import transformers

from npu_llm.checkpoint.facts import context_length, read_facts
from npu_llm.checkpoint.source import ModelSource, find_source
from npu_llm.errors import ModelError
from npu_llm.precision import PRECISIONS


def test_facts_of_every_architecture_are_those_of_the_model(tiny, architecture):
    pair = tiny(architecture)
    facts = read_facts(find_source(pair.folder))
    model = pair.reference
    text = model.config.get_text_config()
    assert facts.architecture == text.model_type or facts.architecture == model.config.model_type
    # Buffers count too where they are stored; a tied weight counts once.
    stored = {id(one): one.numel() for one in model.state_dict(keep_vars=True).values()}
    assert facts.parameters == sum(stored.values())
    assert facts.layers == text.num_hidden_layers
    assert facts.heads == text.num_attention_heads
    assert facts.vocabulary == text.vocab_size
    assert facts.is_mapped
    cache = model(torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
    assert facts.kv_heads == cache.layers[0].keys.shape[1]
    assert facts.head_dim == cache.layers[0].keys.shape[3]
    assert facts.picked_tokens == getattr(text, "index_topk", 0)


def test_facts_of_a_gguf_file(weights):
    facts = read_facts(ModelSource(weights.parent, weights.name))
    assert facts.architecture == "llama"
    assert (facts.layers, facts.heads, facts.kv_heads, facts.head_dim) == (30, 9, 3, 64)
    assert (facts.vocabulary, facts.context_length, facts.is_tied) == (49152, 8192, True)
    assert facts.parameters == pytest.approx(134.5e6, rel=0.01)
    assert facts.quantization == "GGUF: Q4_1 (79%), Q8_0 (21%)"
    assert facts.own_bytes == pytest.approx(facts.stored_bytes, rel=0.05)


@pytest.mark.parametrize(
    "kinds, own, quantization",
    [
        (["F32"], "float32", None),
        (["F16", "F16", "F32"], "float16", None),
        (["BF16"], "bfloat16", None),
        (["Q4_0", "F16", "F16"], "file", "GGUF: Q4_0"),
        (["IQ3_S", "Q4_K", "IQ3_S"], "file", "GGUF: IQ3_S (67%), Q4_K (33%)"),
    ],
)
def test_a_gguf_file_is_in_its_own_precision_by_default(tmp_path, kinds, own, quantization):
    writer = gguf.GGUFWriter(tmp_path / "some.gguf", "llama")
    for number, name in enumerate(kinds):
        kind = gguf.GGMLQuantizationType[name]
        shape = gguf.quant_shape_to_byte_shape((2, 256), kind)
        writer.add_tensor(f"some.{number}", np.zeros(shape, np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    facts = read_facts(find_source(tmp_path / "some.gguf"))
    assert (facts.own_precision, facts.quantization) == (own, quantization)
    assert facts.default_precision("kernels") == own
    assert facts.default_precision("dynamic") == ("bfloat16" if own == "file" else own)
    assert facts.default_precision("static", is_for_npus=True) == "int8"
    bits = {"F32": 32, "F16": 16, "BF16": 16, "Q4_0": 4.5, "IQ3_S": 6.5625, "Q4_K": 4.5}
    assert facts.own_bytes == sum(512 * bits[name] // 8 for name in kinds)


def test_what_becomes_of_quantized_weights(weights):
    facts = read_facts(ModelSource(weights.parent, weights.name))

    def said(name, quantization=facts.quantization, pipeline="kernels"):
        found = replace(facts, quantization=quantization)
        return found.how_weights_run(PRECISIONS[name], pipeline, "bfloat16").partition("; ")[2]

    assert said("file") == said("int4", "GGUF: Q4_0") == "kept as they are"
    assert said("int4").startswith("rounded again to int4, which raises perplexity by 2")
    assert said("int8", "GGUF: Q4_0 (79%), Q8_0 (21%)") == (
        "rounded again to int8, except Q4_0, which is kept"
    )
    assert said("bfloat16") == "rounded again to bfloat16"
    dynamic = said("bfloat16", pipeline="dynamic")
    assert dynamic.endswith("since only the kernels pipeline computes from such weights")


@pytest.mark.parametrize(
    "own, asked, computed, expected",
    [
        ("float16", "float16", "float16", None),
        ("float16", "float16", "float32", "GGUF: float16; computed in float32"),
        ("float16", "int8", "bfloat16", "GGUF: float16; stored in int8, computed in bfloat16"),
        ("bfloat16", "float32", "float32", "GGUF: bfloat16; stored in float32"),
    ],
)
def test_what_becomes_of_a_file_of_floats(weights, own, asked, computed, expected):
    facts = read_facts(ModelSource(weights.parent, weights.name))
    facts = replace(facts, quantization=None, own_precision=own)
    assert facts.how_weights_run(PRECISIONS[asked], "kernels", computed) == expected
    checkpoint = replace(facts, is_gguf=False)
    assert checkpoint.how_weights_run(PRECISIONS[asked], "kernels", computed) is None


def test_embedding_that_is_no_head_counts_apart(tmp_path):
    sizes = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=2, tie_word_embeddings=False, eos_token_id=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    facts = read_facts(find_source(tmp_path))
    assert not facts.is_tied
    assert facts.table_parameters == 50 * 8
    assert facts.matrix_parameters == 50 * 8 + 4 * 8 * 8 + 3 * 8 * 16


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps({"model_type": 3})])
def test_config_that_is_none(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError) as caught:
        read_facts(ModelSource(tmp_path))
    assert caught.value.code == "config-unreadable"
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "config, length",
    [
        ({"max_position_embeddings": 64, "seq_length": 32}, 64),
        ({"seq_length": 32}, 32),
        ({"n_ctx": 16, "n_positions": None}, 16),
        ({"n_ctx": 16, "text_config": {"max_seq_len": 8}}, 8),
        ({"max_position_embeddings": True}, None),
        ({"n_positions": 0}, None),
    ],
)
def test_context_length_is_the_first_that_a_config_has(config, length):
    assert context_length(config) == length

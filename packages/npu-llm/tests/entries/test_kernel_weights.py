"""Weights as the kernels read them, and what becomes of blocks that a GGUF file holds."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from transformers import AutoModelForCausalLM

from npu_llm import NPUModelForCausalLM
from npu_llm.capture.compression import Compression
from npu_llm.capture.functional import make_functional
from npu_llm.capture.step import capture_step
from npu_llm.checkpoint.exact_blocks import exact_blocks
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.entries.kernel_step import lower_step
from npu_llm.entries.kernel_weights import pack_weights
from npu_llm.entries.packed_parameters import PackedParameters
from npu_llm.precision import PRECISIONS
from npu_llm.verification.torch_reference import read_reference
from npu_ops.kernel_programs.weights import PackedLinear, read_weights, unpack, write_weights

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 112,
}  # fmt: skip
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}
Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0


def permuted(value, heads):
    """Rows of queries and keys as GGUF has them for llama: pairs of rotary embeddings together."""
    return value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)


def write_gguf(model, path, kinds=lambda name: Q4_0):
    """Writes a llama with a tokenizer of single letters; matrices in the kinds asked for."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(model.config.max_position_embeddings)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(112)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(
        [chr(33 + index) for index in range(90)] + ["AB"] + [f"{i}x" for i in range(21)]
    )
    writer.add_token_types([1] * 112)
    writer.add_token_merges(["A B"])
    for name, value in model.state_dict().items():
        array = value.numpy()
        if "q_proj" in name or "k_proj" in name:
            array = permuted(array, 4 if "q_proj" in name else 2)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        if value.dim() == 1:
            writer.add_tensor(name, array)
        else:
            kind = kinds(name)
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def packed(source, folder, dtype="int4", **how):
    """A model, and the parameters that are read back from its packed weights."""
    model, weights = load_model(source)
    captured = capture_step(model)
    make_functional(captured.graph_module)
    lowered = lower_step(captured, 128)
    write_weights(
        folder / "weights",
        pack_weights(lowered, weights, precision=PRECISIONS[dtype], compression=Compression(**how)),
    )
    return model, PackedParameters(lowered, folder / "weights")


@pytest.fixture
def model(tmp_path, save_tiny):
    return save_tiny("llama", tmp_path / "original", **SIZES)


@pytest.mark.parametrize("tied", [False, True])
def test_blocks_of_q4_0_are_packed_bit_for_bit(tmp_path, save_tiny, tied):
    original = save_tiny("llama", tmp_path / "original", tie_word_embeddings=tied, **SIZES)
    state = original.state_dict()
    if tied:
        del state["lm_head.weight"]
        original.state_dict = lambda: state
    file = write_gguf(original, tmp_path / "some.gguf")
    model, found = packed(find_source(file), tmp_path, group_size=128)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert torch.equal(found.read(parameter), parameter), name
    # And the file's own values, without what transformers made of them.
    tensors = {
        one.name: gguf.dequantize(one.data, one.tensor_type) for one in GGUFReader(file).tensors
    }
    layer = model.model.layers[1]
    read = found.read(layer.mlp.down_proj.weight)
    np.testing.assert_array_equal(read.numpy(), tensors["blk.1.ffn_down.weight"])
    read = found.read(layer.self_attn.k_proj.weight)
    np.testing.assert_array_equal(permuted(read.numpy(), 2), tensors["blk.1.attn_k.weight"])
    stored = read_weights(tmp_path / "weights")
    linear = [one for one in stored.values() if isinstance(one, PackedLinear)]
    assert {(one.kind, one.group) for one in linear} == {("int4", 32)}
    assert all(one.zeros is None for one in linear)
    rows = sorted(row for one in linear for row in unpack(one).tolist())
    weights = [one for one in tensors.values() if one.ndim == 2]
    assert rows == sorted(row for one in weights for row in one.tolist())


def test_a_model_that_was_unpacked_can_be_saved_by_transformers(tmp_path, model):
    unpacked, _ = load_model(find_source(write_gguf(model, tmp_path / "some.gguf")))
    unpacked.save_pretrained(tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert all(map(torch.equal, saved.parameters(), unpacked.parameters()))


def test_a_model_of_q4_0_differs_by_the_rounding_of_activations(tmp_path, model):
    file = write_gguf(model, tmp_path / "some.gguf")
    ours = NPUModelForCausalLM.from_pretrained(
        file, dtype="int4", pipeline="kernels", cache_dir=tmp_path / "cache"
    )
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    assert ours.verification.status == "right"
    reference = read_reference(ours._entry.reference_path)
    with torch.no_grad():
        logits = theirs(reference.ids[None]).logits[0]
    torch.testing.assert_close(reference.logits, logits[list(reference.rows)], rtol=0, atol=1e-4)
    error = (ours(reference.ids[None]).logits[0] - logits).norm() / logits.norm()
    assert 0 < error < 0.05


def test_others_beside_such_blocks_are_rounded_in_groups_of_their_size(tmp_path, model):
    def kinds(name):
        return Q8_0 if "attn_v" in name or "token_embd" in name else Q4_0

    file = write_gguf(model, tmp_path / "some.gguf", kinds)
    model, found = packed(find_source(file), tmp_path)
    layer = model.model.layers[0].self_attn
    assert torch.equal(found.read(layer.q_proj.weight), layer.q_proj.weight)
    value, exact = found.read(layer.v_proj.weight), layer.v_proj.weight.detach()
    assert 0 < float((value - exact).abs().max()) < float(exact.abs().max()) / 8
    assert found.read(model.model.embed_tokens.weight) is None  # looked up, in float16


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_other_precisions_do_not_keep_blocks(tmp_path, model, dtype):
    file = write_gguf(model, tmp_path / "some.gguf")
    packed(find_source(file), tmp_path, dtype)
    kinds = {
        one.kind
        for one in read_weights(tmp_path / "weights").values()
        if isinstance(one, PackedLinear)
    }
    assert "int4" not in kinds
    assert dtype in kinds


def test_weights_of_other_origin_are_in_the_groups_asked_for(tmp_path, model):
    model, found = packed(find_source(tmp_path / "original"), tmp_path, group_size=32)
    layer = model.model.layers[0].mlp
    assert exact_blocks(layer.up_proj.weight) is None
    assert not torch.equal(found.read(layer.up_proj.weight), layer.up_proj.weight)
    stored = read_weights(tmp_path / "weights")
    assert {(one.kind, one.group) for one in stored.values() if isinstance(one, PackedLinear)} == {
        ("int4", 32),
        ("float16", 0),
    }

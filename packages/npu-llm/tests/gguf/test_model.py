import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader

from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ModelError
from npu_llm.gguf.model import load_gguf_model
from tiny_gguf import write_tiny

WITNESS = json.loads((Path(__file__).parent / "witness.json").read_text())


@pytest.fixture
def llama():
    """A description of a file that a test may change."""
    return deepcopy(WITNESS["llama"])


def refusal(path, described):
    with pytest.raises(ModelError) as caught:
        load_gguf_model(write_tiny(path / "some.gguf", described))
    assert str(path / "some.gguf") in str(caught.value)
    return caught.value


def test_parameters_have_no_memory_and_their_values_are_the_file_s(tmp_path, llama):
    path = write_tiny(tmp_path / "some.gguf", llama)
    model, weights = load_gguf_model(path)
    assert {one.device.type for one in model.parameters()} == {"meta"}
    assert set(weights) == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    stored = {one.name: one.data for one in GGUFReader(path).tensors}
    value = weights["model.layers.1.mlp.up_proj.weight"].values()
    np.testing.assert_array_equal(value.numpy(), stored["blk.1.ffn_up.weight"])


def test_blocks_are_the_file_s_rows_in_the_parameter_s_order(tmp_path, llama):
    path = write_tiny(tmp_path / "some.gguf", llama, GGMLQuantizationType.Q8_0)
    _, weights = load_gguf_model(path)
    for name in ("q_proj", "o_proj"):
        weight = weights[f"model.layers.0.self_attn.{name}.weight"]
        blocks = weight.blocks()
        assert blocks.type == "Q8_0"
        assert (blocks.order is None) == (name == "o_proj")
        rows = blocks.rows().reshape(weight.shape[0], -1, 34)
        scale = rows[..., :2].copy().view(np.float16).astype(np.float32)
        values = (rows[..., 2:].view(np.int8) * scale).reshape(weight.shape)
        np.testing.assert_array_equal(values, weight.values().numpy())


def test_biases_that_the_class_does_not_have_are_used(tmp_path, llama):
    _, plain = load_gguf_model(write_tiny(tmp_path / "plain.gguf", llama))
    llama["tensors"]["blk.1.attn_output.bias"] = [
        [llama["metadata"]["llama.embedding_length"][1]],
        0.0,
        1.0,
    ]
    model, weights = load_gguf_model(write_tiny(tmp_path / "some.gguf", llama))
    assert set(weights) - set(plain) == {"model.layers.1.self_attn.o_proj.bias"}
    assert model.model.layers[0].self_attn.o_proj.bias is None


def test_an_architecture_without_a_row_is_named(tmp_path, llama):
    llama["architecture"] = "llamb"
    error = refusal(tmp_path, llama)
    assert error.code == "gguf-architecture"
    assert "'llamb'" in str(error)
    assert "Similar names: llama" in str(error)


def test_a_key_that_nothing_reads_is_named(tmp_path, llama):
    llama["metadata"]["llama.attention.value_scale"] = [["FLOAT32"], 0.5]
    error = refusal(tmp_path, llama)
    assert error.code == "gguf-metadata"
    assert "llama.attention.value_scale = 0.5" in str(error)


@pytest.mark.parametrize("key", ["embedding_length", "attention.layer_norm_rms_epsilon"])
def test_a_key_that_is_missing_is_named(tmp_path, llama, key):
    del llama["metadata"][f"llama.{key}"]
    error = refusal(tmp_path, llama)
    assert error.code == "gguf-metadata"
    assert f"llama.{key}" in str(error)


@pytest.mark.parametrize(
    "key, value",
    [
        ("block_count", 1 << 40),
        ("attention.head_count", 0),
        ("attention.key_length", 1 << 40),
        ("attention.head_count", 1 << 40),
        ("attention.head_count_kv", 3),
        ("rope.dimension_count", 7),
        ("rope.freq_base", "high"),
        ("rope.scaling.type", "cubic"),
        ("attention.layer_norm_rms_epsilon", "small"),
        ("embedding_length", 1 << 45),
        ("feed_forward_length", 1 << 45),
        ("context_length", -1),
    ],
)
def test_values_that_make_no_sense_are_refused(tmp_path, llama, key, value):
    kind = {int: "INT64" if isinstance(value, int) and value < 0 else "UINT64", str: "STRING"}
    llama["metadata"][f"llama.{key}"] = [[kind[type(value)]], value]
    assert refusal(tmp_path, llama).code in ("gguf-metadata", "weights-shape")


def test_yarn_without_a_context_is_refused(tmp_path):
    described = deepcopy(WITNESS["llama_rope_yarn"])
    described["metadata"]["llama.rope.scaling.original_context_length"] = [["UINT32"], 0]
    error = refusal(tmp_path, described)
    assert error.code == "gguf-metadata"
    assert "got 0 and 10000.0" in str(error)


def test_tensors_without_a_place_are_named(tmp_path, llama):
    llama["tensors"]["blk.0.attn_sub_norm.weight"] = [[4], 1.0, 0.1]
    error = refusal(tmp_path, llama)
    assert error.code == "gguf-tensors"
    assert "blk.0.attn_sub_norm.weight" in str(error)


def test_a_tensor_that_is_missing_is_named(tmp_path, llama):
    del llama["tensors"]["blk.1.ffn_up.weight"]
    error = refusal(tmp_path, llama)
    assert error.code == "weights-missing"
    assert "blk.1.ffn_up.weight" in str(error)


def test_a_tensor_of_another_shape_is_named(tmp_path, llama):
    llama["tensors"]["blk.1.ffn_up.weight"][0][0] += 2
    error = refusal(tmp_path, llama)
    assert error.code == "weights-shape"
    assert "blk.1.ffn_up.weight" in str(error)


def test_streamed_values_are_those_of_a_filled_model(tmp_path, llama):
    path = write_tiny(tmp_path / "some.gguf", llama, GGMLQuantizationType.Q4_0)
    model, weights = load_model(find_source(path))
    read = {name: weights.read(one.detach()).clone() for name, one in model.named_parameters()}
    weights.fill()
    assert all(torch.equal(read[name], one) for name, one in model.named_parameters())

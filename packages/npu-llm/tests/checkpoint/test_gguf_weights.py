import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from transformers import modeling_gguf_pytorch_utils
from transformers.integrations.ggml import _gguf_parse_value

from npu_llm.checkpoint.gguf_weights import read_gguf_once


@pytest.fixture
def file(tmp_path):
    writer = GGUFWriter(tmp_path / "some.gguf", "llama")
    writer.add_string("general.name", "näme")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.rope.freq_base", 0.5)
    writer.add_array("tokenizer.ggml.tokens", ["", "a", "ü▁x", "\n"])
    writer.add_array("tokenizer.ggml.scores", [0.25, -1.5, float("inf"), 0.0])
    writer.add_array("tokenizer.ggml.token_type", [1, 3, 1, 6])
    writer.add_array("some.flags", [True, False])
    values = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    writer.add_tensor("token_embd.weight", values)
    kind = GGMLQuantizationType.Q8_0
    writer.add_tensor("output.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "some.gguf"


def values(reader):
    """What transformers makes of the metadata."""
    return {
        name: [_gguf_parse_value(field.parts[place], field.types) for place in field.data]
        for name, field in reader.fields.items()
    }


def test_metadata_and_tensors_are_what_gguf_reads(file):
    expected = GGUFReader(file)
    with read_gguf_once():
        found = gguf.GGUFReader(file)
        assert gguf.GGUFReader(file) is found
    assert repr(values(found)) == repr(values(expected))
    assert [one.name for one in found.tensors] == ["token_embd.weight", "output.weight"]
    for ours, theirs in zip(found.tensors, expected.tensors, strict=True):
        np.testing.assert_array_equal(ours.data, theirs.data)
        assert ours.tensor_type == theirs.tensor_type
    assert gguf.GGUFReader is GGUFReader


def test_transformers_own_reader_finds_the_same(file):
    own = pytest.importorskip("transformers.integrations.gguf.reader")
    strings = ("tokenizer.ggml.tokens",)
    expected, mapped = own.read_gguf_metadata(file, strings), own._mapped
    with read_gguf_once():
        assert own.read_gguf_metadata(file, strings) == expected
        assert own._mapped is not mapped
    assert own._mapped is mapped
    assert modeling_gguf_pytorch_utils._gguf_parse_value is _gguf_parse_value


def test_elements_are_what_transformers_makes_of_them(file):
    with read_gguf_once():
        parse = modeling_gguf_pytorch_utils._gguf_parse_value
        found = gguf.GGUFReader(file)
        quick = {
            name: [parse(field.parts[place], field.types) for place in field.data]
            for name, field in found.fields.items()
        }
    assert repr(quick) == repr(values(GGUFReader(file)))

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from transformers import modeling_gguf_pytorch_utils
from transformers.integrations.ggml import _gguf_parse_value

from npu_llm.checkpoint.gguf_weights import exact_blocks, gguf_progress, read_gguf_once

KINDS = [kind for kind in GGMLQuantizationType if hasattr(gguf.quants, kind.name)]


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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_dequantized_values_are_gguf_s(kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 256, (35, 3 * size), np.uint8)
    with np.errstate(all="ignore"):  # scales are random bytes too
        expected = gguf.dequantize(raw, kind)
        with read_gguf_once():
            found = gguf.dequantize(raw, kind)
    assert found.shape == (35, 3 * block)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_plain_values_stay(dtype):
    kind = {np.float32: GGMLQuantizationType.F32, np.float16: GGMLQuantizationType.F16}[dtype]
    raw = np.arange(6, dtype=dtype).reshape(2, 3)
    with read_gguf_once():
        np.testing.assert_array_equal(gguf.dequantize(raw, kind), raw.astype(np.float32))


def test_progress_names_the_tensor_that_is_converted(file):
    seen = []
    tensors = GGUFReader(file).tensors
    with gguf_progress(lambda share, doing: seen.append((share, doing))):
        assert list(modeling_gguf_pytorch_utils.tqdm(tensors, desc="said by tqdm")) == tensors
    first, second = (one.n_bytes for one in tensors)
    assert seen == [
        (0.0, "tensor 1 of 2, 0 of 0 MB, token_embd.weight"),
        (first / (first + second), "tensor 2 of 2, 0 of 0 MB, output.weight"),
    ]


def dequantized(kind, rows=7, columns=96, seed=0):
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return torch.from_numpy(gguf.dequantize(gguf.quantize(values, kind), kind))


def test_blocks_of_q4_0_are_found():
    weight = dequantized(GGMLQuantizationType.Q4_0)
    weight[2, 32:64] = 0.0
    found = exact_blocks(weight)
    assert found is not None
    assert found.values.shape == (7, 3, 32)
    assert found.zero_point is None
    assert torch.equal(found.scale.half().float(), found.scale)
    assert torch.equal(found.dequantize(), weight)


def test_any_integers_and_scales_of_a_file_are_found():
    """Other encoders use other integers than llama.cpp's, and scales of either sign."""
    generator = np.random.default_rng(1)
    d = generator.standard_normal((40, 1)).astype(np.float16)
    d[3], d[4] = 6e-8, -65504.0 / 8
    raw = np.concatenate([d.view(np.uint8), generator.integers(0, 256, (40, 16), np.uint8)], 1)
    raw[5, 2:] = 0x98  # only 0 and 1
    raw[6, 2:] = 0xFB  # 3 and 7: none has the lowest integer
    raw = raw.reshape(20, 36)
    weight = torch.from_numpy(gguf.dequantize(raw, GGMLQuantizationType.Q4_0))
    found = exact_blocks(weight)
    assert found is not None
    assert torch.equal(found.dequantize(), weight)


def test_rows_in_another_order_and_transposed_weights_are_found():
    weight = dequantized(GGMLQuantizationType.Q4_0)[torch.tensor([4, 0, 6, 2, 1, 5, 3])]
    stored = weight.t().contiguous()
    found = exact_blocks(stored.t())
    assert found is not None
    assert torch.equal(found.dequantize(), weight)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q5_0", "F16"])
def test_other_blocks_are_none(kind):
    assert exact_blocks(dequantized(GGMLQuantizationType[kind])) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e-30, 3e38])
@pytest.mark.parametrize("row", [0, 6])
def test_one_value_that_does_not_fit_refuses_all(value, row):
    weight = dequantized(GGMLQuantizationType.Q4_0)
    weight[row, 40] = value
    assert exact_blocks(weight) is None


def test_a_value_that_is_off_by_one_bit_refuses_all():
    weight = dequantized(GGMLQuantizationType.Q4_0)
    at = int(weight[5].abs().argmax())
    weight[5, at] = torch.nextafter(weight[5, at], torch.tensor(9.0))
    assert exact_blocks(weight) is None


def test_shapes_without_blocks_are_none():
    assert exact_blocks(torch.zeros(3, 40)) is None
    assert exact_blocks(torch.zeros(64)) is None
    assert exact_blocks(torch.zeros(0, 64)) is None

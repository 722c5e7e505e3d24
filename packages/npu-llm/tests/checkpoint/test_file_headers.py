import json
import struct

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.torch import save_file

from npu_llm.checkpoint.file_headers import _BLOCKS, read_folder_headers, read_gguf_header
from npu_llm.errors import ModelError

HEADER_BYTES = 328  # of the sound file


@pytest.fixture
def sound(tmp_path):
    """A small GGUF file with arrays and tensors of several types."""
    path = tmp_path / "sound.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", "<s>"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, 2.5])
    rows = np.arange(256, dtype=np.float32).reshape(2, 128)
    writer.add_tensor("plain", rows)
    packed = quantize(rows, GGMLQuantizationType.Q4_1)
    writer.add_tensor("packed", packed, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_header_of_a_sound_file(sound):
    header = read_gguf_header(sound)
    assert header.architecture == "llama"
    assert header.tensor_count == 2
    assert header.metadata["llama.context_length"] == 128
    assert header.size_bytes <= sound.stat().st_size


def test_header_of_the_real_weights(weights):
    header = read_gguf_header(weights)
    assert header.architecture == "llama"
    assert header.tensor_count == 272


def test_sizes_of_blocks_are_those_of_gguf():
    for kind, sizes in _BLOCKS.items():
        assert GGML_QUANT_SIZES[GGMLQuantizationType(kind)] == sizes


def test_a_type_of_few_releases_is_asked_of_gguf(tmp_path):
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType.MXFP4][1]
    assert GGMLQuantizationType.MXFP4 not in _BLOCKS
    writer = GGUFWriter(tmp_path / "new.gguf", "llama")
    rows = np.zeros((2, 3 * block_bytes), np.uint8)
    writer.add_tensor("packed", rows, raw_dtype=GGMLQuantizationType.MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf_header(tmp_path / "new.gguf")
    assert header.shapes == {"packed": (96, 2)}
    assert 0 <= (tmp_path / "new.gguf").stat().st_size - header.size_bytes < 32


@pytest.mark.parametrize("share", [0.999, 0.9, 0.6, 0.3, 0.05, 0.01, 0.0])
def test_file_that_is_cut_short(sound, tmp_path, share):
    content = sound.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError) as caught:
        read_gguf_header(cut)
    # A header that is cut may look too short for its counts before it looks cut.
    assert caught.value.code in ("gguf-truncated", "gguf-corrupt")
    assert str(cut) in str(caught.value)
    assert "Download it again" in str(caught.value)


def test_cut_file_says_how_much_is_missing(sound, tmp_path):
    content = sound.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[:-200])
    with pytest.raises(ModelError, match=f"it has {len(content) - 200:,}") as caught:
        read_gguf_header(cut)
    assert caught.value.code == "gguf-truncated"


@pytest.mark.parametrize(
    "at, change, quoted",
    [
        (0, b"GGML", "GGML"),
        (4, struct.pack("<I", 77), "77"),
        (8, struct.pack("<Q", 10**15), "1000000000000000 tensors"),
        (16, struct.pack("<Q", 10**15), "1000000000000000 pairs"),
    ],
)
def test_header_that_makes_no_sense(sound, at, change, quoted):
    content = bytearray(sound.read_bytes())
    content[at : at + len(change)] = change
    sound.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_gguf_header(sound)
    assert caught.value.code == "gguf-corrupt"
    assert quoted in str(caught.value)


def test_noise_is_an_error(sound):
    content = sound.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(300):
        noisy = bytearray(content)
        for at in generator.integers(0, HEADER_BYTES, 24):
            noisy[at] = generator.integers(0, 256)
        sound.write_bytes(noisy)
        with pytest.raises(ModelError, match=r"Download it again\.") as caught:
            read_gguf_header(sound)
        assert caught.value.code in ("gguf-truncated", "gguf-corrupt")


def test_bit_that_flips_is_an_error_or_leaves_a_header_that_fits_the_file(sound):
    content = sound.read_bytes()
    codes = []
    for at in range(8 * HEADER_BYTES):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        sound.write_bytes(flipped)
        try:
            header = read_gguf_header(sound)
        except ModelError as error:
            codes.append(error.code)
        else:
            assert header.size_bytes <= len(content)
    assert set(codes) == {"gguf-truncated", "gguf-corrupt"}
    assert len(codes) > 4 * HEADER_BYTES


def save(folder, name="model.safetensors", **tensors):
    save_file(tensors, folder / name)
    return folder / name


def with_header(**changed):
    about = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}
    text = json.dumps({"a": about}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


def refusal(folder):
    with pytest.raises(ModelError) as caught:
        read_folder_headers(folder)
    return caught.value


def test_tensors_are_listed_with_shape_dtype_and_size(tmp_path):
    save(tmp_path, a=torch.zeros(2, 3, dtype=torch.bfloat16), b=torch.zeros(4))
    found = read_folder_headers(tmp_path)
    assert sorted(found) == ["a", "b"]
    assert (found["a"].dtype, found["a"].shape, found["a"].size_bytes) == ("BF16", (2, 3), 12)
    assert found["b"].elements == 4


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.int8, torch.int64, torch.float64, torch.float8_e4m3fn, torch.complex64],
)
def test_the_size_of_a_tensor_is_that_of_its_numbers(tmp_path, dtype):
    tensor = torch.zeros(3, 5, dtype=dtype)
    save(tmp_path, a=tensor)
    assert read_folder_headers(tmp_path)["a"].size_bytes == tensor.nbytes


def test_folder_without_safetensors_has_none(tmp_path):
    assert read_folder_headers(tmp_path) == {}


def test_shards_are_read_together(tmp_path):
    save(tmp_path, "one.safetensors", a=torch.zeros(2))
    save(tmp_path, "two.safetensors", b=torch.zeros(2))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(read_folder_headers(tmp_path)) == ["a", "b"]
    (tmp_path / "two.safetensors").unlink()
    error = refusal(tmp_path)
    assert error.code == "weights-missing"
    assert "two.safetensors" in str(error)


@pytest.mark.parametrize("keep", [4, 30, -1])
def test_weights_that_are_cut_short(tmp_path, keep):
    path = save(tmp_path, a=torch.zeros(100))
    path.write_bytes(path.read_bytes()[:keep])
    error = refusal(tmp_path)
    assert error.code == "weights-truncated"
    assert "model.safetensors" in str(error)
    assert f"{path.stat().st_size:,}" in str(error)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 100,
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 9) + b'{"a":"b"}',
        struct.pack("<Q", 5_000) + b"[" * 5_000,
        with_header(shape=[3]),
        with_header(shape=[-2]),
        with_header(shape=[2**62, 4]),
        with_header(dtype="X9"),
        with_header(data_offsets=[8, 0]),
        with_header(data_offsets=[4, 8]),
        with_header() + b"more",
    ],
)
def test_file_that_is_no_safetensors(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert refusal(tmp_path).code == "weights-corrupt"


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": {"a": "../elsewhere"}}'])
def test_index_that_makes_no_sense(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert refusal(tmp_path).code == "weights-corrupt"

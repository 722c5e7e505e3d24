import struct
import time

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from npu_llm.errors import ModelError
from npu_llm.gguf.file import _BLOCKS, find_parts, open_gguf

KINDS = [kind for kind in GGMLQuantizationType if hasattr(gguf.quants, kind.name)]

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


def test_a_sound_file(sound):
    file = open_gguf(sound)
    assert file.architecture == "llama"
    assert list(file.tensors) == ["plain", "packed"]
    assert file.metadata["llama.context_length"] == 128
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "é", "<s>"]
    assert file.metadata["tokenizer.ggml.scores"] == [0.5, 1.5, 2.5]
    assert file.size_bytes <= sound.stat().st_size
    plain, packed = file.tensors.values()
    assert (plain.type, plain.shape, packed.type) == ("F32", (2, 128), "Q4_1")
    np.testing.assert_array_equal(plain.values(), np.arange(256).reshape(2, 128))
    np.testing.assert_array_equal(plain.values(np.array([1, 1])), plain.values()[[1, 1]])
    assert packed.blocks().shape == (2, 80)
    np.testing.assert_allclose(packed.values(), plain.values(), atol=2)


def test_the_real_weights(weights):
    file = open_gguf(weights)
    assert file.architecture == "llama"
    assert len(file.tensors) == 272


def test_sizes_of_blocks_are_those_of_gguf():
    for kind, (name, *sizes) in _BLOCKS.items():
        assert GGMLQuantizationType(kind).name == name
        assert list(GGML_QUANT_SIZES[GGMLQuantizationType(kind)]) == sizes


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
    file = open_gguf(tmp_path / "new.gguf")
    assert (file.tensors["packed"].type, file.tensors["packed"].shape) == ("MXFP4", (2, 96))
    assert 0 <= (tmp_path / "new.gguf").stat().st_size - file.size_bytes < 32


@pytest.mark.parametrize("share", [0.999, 0.9, 0.6, 0.3, 0.05, 0.01, 0.0])
def test_file_that_is_cut_short(sound, tmp_path, share):
    content = sound.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError) as caught:
        open_gguf(cut)
    # A header that is cut may look too short for its counts before it looks cut.
    assert caught.value.code in ("gguf-truncated", "gguf-corrupt")
    assert str(cut) in str(caught.value)
    assert "Download it again" in str(caught.value)


def test_cut_file_says_how_much_is_missing(sound, tmp_path):
    content = sound.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[:-200])
    with pytest.raises(ModelError, match=f"it has {len(content) - 200:,}") as caught:
        open_gguf(cut)
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
        open_gguf(sound)
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
            open_gguf(sound)
        assert caught.value.code in ("gguf-truncated", "gguf-corrupt")


def test_bit_that_flips_is_an_error_or_leaves_a_header_that_fits_the_file(sound):
    content = sound.read_bytes()
    codes = []
    for at in range(8 * HEADER_BYTES):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        sound.write_bytes(flipped)
        try:
            file = open_gguf(sound)
        except ModelError as error:
            codes.append(error.code)
        else:
            assert file.size_bytes <= len(content)
    assert set(codes) == {"gguf-truncated", "gguf-corrupt"}
    assert len(codes) > 4 * HEADER_BYTES


def refusal(path):
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    return caught.value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_unpacked_values_are_gguf_s(kind, tmp_path):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 256, (35, 3 * size), np.uint8)
    writer = GGUFWriter(tmp_path / "some.gguf", "llama")
    writer.add_tensor("some", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = open_gguf(tmp_path / "some.gguf").tensors["some"]
    with np.errstate(all="ignore"):  # scales are random bytes too
        expected = gguf.dequantize(raw, kind)
        rows = np.array([4, 0, 34])
        np.testing.assert_array_equal(tensor.values(), expected)
        np.testing.assert_array_equal(tensor.values(rows), expected[rows])
    assert tensor.shape == (35, 3 * block)
    np.testing.assert_array_equal(tensor.blocks(), raw)


def test_a_type_that_gguf_cannot_unpack_is_named(tmp_path):
    writer = GGUFWriter(tmp_path / "some.gguf", "llama")
    raw = np.zeros((1, 292), np.uint8)
    writer.add_tensor("some", raw, raw_dtype=GGMLQuantizationType.Q8_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = open_gguf(tmp_path / "some.gguf").tensors["some"]
    with pytest.raises(ModelError, match="Q8_K") as caught:
        tensor.values()
    assert caught.value.code == "gguf-type"


def write_part(folder, number, count, *, names=("t",), said=None, architecture="llama"):
    path = folder / f"some-{number:05}-of-{count:05}.gguf"
    writer = GGUFWriter(path, architecture)
    if number == 1:
        writer.add_context_length(77)
    writer.add_uint16("split.no", number - 1)
    writer.add_uint16("split.count", count if said is None else said)
    writer.add_int32("split.tensors.count", count * len(names))
    for name in names:
        writer.add_tensor(f"{name}{number}", np.full((2, 32), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_all_parts_are_found_from_any(tmp_path):
    paths = tuple(write_part(tmp_path, number, 3) for number in (1, 2, 3))
    for path in paths:
        assert find_parts(path) == paths
        file = open_gguf(path)
        assert sorted(file.tensors) == ["t1", "t2", "t3"]
        assert file.metadata["llama.context_length"] == 77
        np.testing.assert_array_equal(file.tensors["t3"].values(), np.full((2, 32), 3))


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_part_is_named_at_once(tmp_path, missing):
    paths = [write_part(tmp_path, number, 2) for number in (1, 2)]
    paths[missing - 1].unlink()
    started = time.monotonic()
    error = refusal(paths[2 - missing])
    assert time.monotonic() - started < 1
    assert error.code == "gguf-split"
    assert paths[missing - 1].name in str(error)


def test_a_part_under_another_name_is_an_error(tmp_path):
    path = write_part(tmp_path, 1, 2)
    error = refusal(path.rename(tmp_path / "other.gguf"))
    assert error.code == "gguf-split"
    assert "-00001-of-00002.gguf" in str(error)


def test_parts_that_do_not_belong_together_are_an_error(tmp_path):
    write_part(tmp_path, 1, 2)
    error = refusal(write_part(tmp_path, 2, 2, said=3))
    assert error.code == "gguf-split"
    write_part(tmp_path, 2, 2, names=("t", "u"))
    assert "must have 2 tensors, got 3" in str(refusal(tmp_path / "some-00001-of-00002.gguf"))


def test_a_count_of_parts_beyond_reason_is_refused_at_once(tmp_path):
    path = write_part(tmp_path, 1, 65_535)
    started = time.monotonic()
    assert "65534 of its 65535 parts are missing" in str(refusal(path))
    assert time.monotonic() - started < 1


def test_tensors_that_share_bytes_are_an_error(sound):
    """Their sizes may add up to more than the file has, and so take any amount of memory."""
    content = bytearray(sound.read_bytes())
    at = content.index(b"packed") + len("packed") + 4 + 2 * 8 + 4
    content[at : at + 8] = struct.pack("<Q", 0)
    sound.write_bytes(content[: len(content) - 128])
    assert refusal(sound).code == "gguf-corrupt"

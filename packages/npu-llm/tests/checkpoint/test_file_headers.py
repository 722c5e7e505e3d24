import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from npu_llm.checkpoint.file_headers import read_folder_headers
from npu_llm.errors import ModelError


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

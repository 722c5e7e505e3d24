import json

import pytest
import torch

from npu_ops.errors import DamagedFileError
from npu_ops.kernel_programs.weight_file import read_weights, write_weights
from npu_ops.kernel_programs.weights import PackedLinear, unpack

from .conftest import rounded


@pytest.fixture
def written(tmp_path, generator):
    """A file of weights of all kinds, and what is in it."""
    weight = torch.randn(40, 96, generator=generator)
    items = {kind: rounded(weight, kind, 32) for kind in ("float32", "bfloat16", "int8", "int4")}
    items |= {"table": torch.arange(7, dtype=torch.int32), "empty": torch.zeros(0, 3)}
    write_weights(tmp_path / "weights", items.items())
    return tmp_path / "weights", items


def test_what_is_read_was_written(written):
    path, items = written
    found = read_weights(path)
    assert found.keys() == items.keys()
    for name, item in items.items():
        if isinstance(item, PackedLinear):
            assert torch.equal(unpack(found[name]), unpack(item))
            assert found[name].data.data_ptr() % 64 == 0
        else:
            assert torch.equal(found[name], item)
    assert not path.with_name("weights.tensors").exists()


def test_it_is_a_safetensors_file(written):
    from safetensors import safe_open

    path, items = written
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("table"), items["table"])
        assert torch.equal(file.get_tensor("int8.data"), items["int8"].data)


@pytest.mark.parametrize(
    "damage", ["cut", "header", "version", "layout", "packed", "offsets", "empty"]
)
def test_damage_is_one_error(written, damage):
    path, _ = written
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    if damage == "cut":
        content = content[: length + 100]
    elif damage == "empty":
        content = content[:3]
    elif damage == "header":
        content[20] ^= 0xFF
    else:
        if damage == "offsets":
            header["table"]["data_offsets"][1] = 1 << 40
        else:
            header["__metadata__"][damage] = "99"
        text = json.dumps(header).encode().ljust(length)
        content[:8] = len(text).to_bytes(8, "little")
        content[8 : 8 + length] = text
    path.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        read_weights(path)
    assert caught.value.code == "weights-file"
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("flip", [0x01, 0x10, 0x80])
def test_a_header_with_any_flipped_bit_is_read_or_refused(written, flip):
    path, _ = written
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    refused = 0
    for place in range(0, 8 + length, 17):
        content = bytearray(whole)
        content[place] ^= flip
        path.write_bytes(content)
        try:
            read_weights(path)
        except DamagedFileError:
            refused += 1
    assert refused > length / 60


def test_a_weight_that_cannot_be_made_leaves_no_file(tmp_path):
    def items():
        yield "first", torch.zeros(3)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_weights(tmp_path / "weights", items())
    assert list(tmp_path.iterdir()) == []

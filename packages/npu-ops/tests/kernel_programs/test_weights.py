import json
from dataclasses import replace

import pytest
import torch

from npu_ops.errors import DamagedFileError, OperatorInputError
from npu_ops.kernel_programs.weights import (
    PackedLinear,
    interleave,
    pack,
    pack_integers,
    read_weights,
    unpack,
    write_weights,
)

from .conftest import rounded


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(1, 1), (16, 64), (17, 3), (48, 100)])
def test_packed_floats_are_the_matrix(kind, shape, generator):
    weight = torch.randn(shape, generator=generator)
    packed = pack(weight, kind)
    assert torch.equal(unpack(packed), weight.to(getattr(torch, kind)).float())
    assert packed.data.numel() % (16 * shape[1]) == 0


@pytest.mark.parametrize("bits, groups, size", [(8, 1, 100), (4, 3, 32), (4, 2, 64), (4, 1, 128)])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_packed_integers_are_the_matrix(bits, groups, size, has_zeros, generator):
    values = torch.randint(0, 2**bits, (35, groups, size), dtype=torch.uint8, generator=generator)
    scales = torch.rand(35, groups, generator=generator).half().float()
    zeros = torch.randint(0, 2**bits, (35, groups), dtype=torch.uint8, generator=generator)
    packed = pack_integers(values, scales, zeros if has_zeros else None, bits=bits)
    zero = zeros[..., None].float() if has_zeros else 2.0 ** (bits - 1)
    expected = ((values.float() - zero) * scales[..., None]).flatten(1)
    assert torch.equal(unpack(packed), expected)
    assert packed.nbytes < 35 * groups * size * 4


def test_gate_and_up_alternate_in_blocks():
    gate, up = torch.zeros(32, 1), torch.ones(32, 1)
    assert interleave(gate, up)[:, 0].tolist() == ([0.0] * 16 + [1.0] * 16) * 2


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int8", "int4"])
def test_padding_is_zero(kind, generator):
    """The bytes after the last output and input are the same in each file."""
    weight = rounded(torch.randn(17, 96, generator=generator), kind, 32)
    size = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int4": 0.5}[kind]
    width = 96 if kind not in ("int8", "int4") else 128
    assert weight.data.numel() == 32 * width * size
    ones = replace(weight, outputs=32, inputs=width if kind == "int8" else 96)
    if kind == "int8":
        ones = replace(ones, scales=torch.ones(32), zeros=torch.zeros(32, dtype=torch.uint8))
        assert not unpack(ones)[:, 96:].any()
    if kind == "int4":
        ones = replace(ones, zeros=torch.zeros_like(ones.zeros))
    assert not unpack(ones)[17:].any()


def test_shapes_that_no_kernel_has():
    values = torch.zeros(16, 2, 48, dtype=torch.uint8)
    whole, scales = torch.zeros(16, 1, 48, dtype=torch.uint8), torch.zeros(16, 1)
    calls = [
        lambda: pack_integers(whole, scales, None, bits=4),
        lambda: pack_integers(whole, scales, torch.zeros(16, 2, dtype=torch.uint8), bits=8),
        lambda: pack_integers(whole, scales, scales, bits=8),
        lambda: pack_integers(whole.int(), scales, None, bits=8),
        lambda: pack_integers(whole[0], scales, None, bits=8),
        lambda: pack_integers(whole, scales, None, bits=2),
        lambda: pack(torch.zeros(3), "float32"),
        lambda: pack(torch.zeros(3, 3), "int8"),
        lambda: pack_integers(values, torch.zeros(16, 2), None, bits=4),
        lambda: interleave(torch.zeros(17, 2), torch.zeros(17, 2)),
    ]
    for call in calls:
        with pytest.raises(OperatorInputError) as caught:
            call()
        assert caught.value.code == "weight-shape"


@pytest.fixture(params=[0, 6], ids=["header written last", "header with room"])
def written(request, tmp_path, generator):
    """A file of weights of all kinds, and its content."""
    weight = torch.randn(40, 96, generator=generator)
    items = {kind: rounded(weight, kind, 32) for kind in ("float32", "bfloat16", "int8", "int4")}
    items |= {"table": torch.arange(7, dtype=torch.int32), "empty": torch.zeros(0, 3)}
    write_weights(tmp_path / "weights", items.items(), count=request.param)
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


def test_tensors_larger_than_a_huge_page_are_read_as_written(tmp_path):
    sizes = [100, 3 << 20, 5, (2 << 20) - 64, 7 << 20]
    tensors = {f"t{i}": torch.randint(0, 256, (n,), dtype=torch.uint8) for i, n in enumerate(sizes)}
    write_weights(tmp_path / "weights", tensors.items(), count=len(sizes))
    found = read_weights(tmp_path / "weights")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())

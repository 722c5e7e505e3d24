import gguf
import numpy as np
import pytest
import torch

from npu_compiler.kernel_programs import Lowered
from npu_llm.gguf.weights import Blocks
from npu_llm.models.stored_weights import pack_exact_floats, pack_stored
from npu_ops.kernel_programs.program import KernelProgram, Recipe
from npu_ops.kernel_programs.weights import interleave, unpack

INPUTS = 256


def quantized(kind, rows, seed):
    """Blocks of a type, and their values."""
    blocks = np.random.default_rng(seed).integers(
        0, 256, (rows, gguf.quant_shape_to_byte_shape((rows, INPUTS), kind)[1]), np.uint8
    )
    size, bytes_of = gguf.GGML_QUANT_SIZES[kind]
    places = {"Q5_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208], "IQ3_S": [0]}[kind.name]
    for place in places:
        blocks.reshape(rows, INPUTS // size, bytes_of)[..., place : place + 2] = [0, 60]
    return blocks, torch.from_numpy(gguf.dequantize(blocks, kind))


class Stored:
    """Parameters by address, of which some have blocks."""

    def __init__(self):
        self.sources, self.values, self._blocks, self.losses = {}, {}, {}, {}

    def add(self, name, kind, rows, *, order=None, is_transposed=False):
        self.sources[name] = torch.zeros(rows, INPUTS)
        if kind is None:
            return
        kind = gguf.GGMLQuantizationType[kind]
        blocks, values = quantized(kind, rows, len(self.sources))
        self.values[name] = values if order is None else values[order]
        self._blocks[self.sources[name].data_ptr()] = Blocks(
            kind.name, (blocks,), order, (rows, INPUTS), is_transposed
        )

    def blocks(self, tensor):
        return self._blocks.get(tensor.data_ptr())

    def packed(self, *, order=None, interleaved=False):
        recipe = Recipe(
            sources=tuple(self.sources),
            kind="linear",
            order=None if order is None else "order",
            interleaved=interleaved,
        )
        program = KernelProgram(
            instructions=(), widths=(), weights={}, layers=(), logits=None, vocabulary=0
        )
        lowered = Lowered(program, {"order": order}, self.sources)
        return pack_stored(recipe, lowered, self, self.losses)

    def joined(self):
        return torch.cat(list(self.values.values()))


@pytest.mark.parametrize(
    "kinds, parts",
    [
        (["Q4_K"], []),
        (["Q5_0", "Q5_0", "Q5_0"], []),
        (["Q5_0", "Q5_0", "Q8_0"], ["q5_0", "q8_0"]),
        (["Q4_K", "Q6_K", "Q4_K"], ["q4_k", "q6_k", "q4_k"]),
    ],
)
def test_joined_sources_keep_their_blocks(kinds, parts):
    stored = Stored()
    for number, (kind, rows) in enumerate(zip(kinds, (48, 16, 20), strict=False)):
        order = np.random.default_rng(0).permutation(rows) if number == 1 else None
        stored.add(f"part{number}", kind, rows, order=order)
    packed = stored.packed()
    assert packed.kind == ("mixed" if parts else kinds[0].lower())
    assert [part.kind for part in packed.parts] == parts
    assert torch.equal(unpack(packed), stored.joined())


def test_a_type_without_kernel_is_repacked():
    stored = Stored()
    stored.add("first", "IQ3_S", 32)
    stored.add("second", "Q6_K", 16)
    packed = stored.packed()
    assert packed.kind == "q6_k"
    assert torch.equal(unpack(packed), stored.joined())
    assert stored.losses == {"IQ3_S": 0.0}


@pytest.mark.parametrize("kinds", [("Q5_0", "Q5_0"), ("Q5_0", "Q8_0")])
def test_gate_and_up_take_turns(kinds):
    stored = Stored()
    for name, kind in zip(("gate", "up"), kinds, strict=True):
        stored.add(name, kind, 48)
    packed = stored.packed(interleaved=True)
    assert packed.alternating == (kinds[0] != kinds[1])
    assert torch.equal(unpack(packed), interleave(*stored.values.values()))


def test_an_order_of_outputs_is_kept():
    stored = Stored()
    stored.add("first", "Q5_0", 32)
    stored.add("second", "Q8_0", 32)
    order = torch.cat([torch.arange(63, 31, -1), torch.arange(32)])
    packed = stored.packed(order=order)
    assert [part.kind for part in packed.parts] == ["q8_0", "q5_0"]
    assert torch.equal(unpack(packed), stored.joined()[order])


@pytest.mark.parametrize("why", ["floats", "transposed", "mingled", "sizes"])
def test_what_cannot_be_packed_as_it_is(why):
    stored, order = Stored(), None
    stored.add("first", "Q5_0", 24 if why == "sizes" else 32)
    stored.add("second", None if why == "floats" else "Q8_0", 32, is_transposed=why == "transposed")
    if why == "mingled":
        order = torch.arange(64).view(2, 32).t().flatten()
    assert stored.packed(order=order) is None


@pytest.mark.parametrize(
    "value, kind",
    [(0.1, "float32"), (65536.0, "bfloat16"), (1 + 2**-10, "float16"), (2.0, "float16")],
)
def test_floats_are_stored_in_what_holds_them(value, kind):
    matrix = torch.full((3, 5), value)
    packed = pack_exact_floats(matrix)
    assert packed.kind == kind
    assert torch.equal(unpack(packed), matrix)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_a_file_of_few_bits_keeps_its_dtype(kind):
    matrix = torch.full((3, 5), 0.1, dtype=getattr(torch, kind))
    assert pack_exact_floats(matrix).kind == kind

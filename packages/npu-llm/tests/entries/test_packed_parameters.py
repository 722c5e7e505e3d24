import pytest
import torch

from npu_compiler.kernel_programs import Lowered
from npu_llm.entries.packed_parameters import PackedParameters, unpack_rows
from npu_ops.kernel_programs.program import KernelProgram, Recipe
from npu_ops.kernel_programs.weights import interleave, pack, pack_integers, unpack, write_weights


def integers(outputs, inputs, bits, group=None, *, zeros=True):
    size = group or inputs
    shape = (outputs, inputs // size, size)
    generator = torch.Generator().manual_seed(outputs + bits)
    values = torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.uint8)
    scales = torch.randn(shape[:2], generator=generator)
    low = torch.randint(0, 2**bits, shape[:2], generator=generator, dtype=torch.uint8)
    return pack_integers(values, scales, low if zeros else None, bits=bits)


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(
    "outputs, inputs, bits, group",
    [
        (40, 96, 4, 32),
        (16, 128, 4, 64),
        (37, 256, 4, 128),
        (9, 64, 4, 32),
        (23, 72, 8, None),
        (32, 64, 8, None),
        (16, 64, 8, None),
        (4, 128, 8, None),
    ],
)
def test_rows_are_those_of_the_whole_matrix(outputs, inputs, bits, group, zeros):
    weight = integers(outputs, inputs, bits, group, zeros=zeros)
    expected = unpack(weight)
    assert torch.equal(unpack_rows(weight), expected)
    rows = torch.tensor([outputs - 1, 3, 3, 0, 17 % outputs])
    assert torch.equal(unpack_rows(weight, rows), expected[rows])
    assert unpack_rows(weight, rows[:0]).shape == (0, inputs)


def lowered(recipes, sources, **tables):
    program = KernelProgram(
        instructions=(), widths=(), weights=recipes, layers=(), logits=None, vocabulary=0
    )
    return Lowered(program, tables, sources)


def test_parts_of_joined_weights_are_found_in_their_own_order(tmp_path):
    sources = {"a": torch.zeros(32, 64), "b": torch.zeros(16, 64), "c": torch.zeros(16, 64)}
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    recipe = Recipe(sources=("a", "b", "c"), kind="linear", order="order", interleaved=True)
    weight = integers(64, 64, 4, 32)
    write_weights(tmp_path / "weights", [("joined", weight)])
    found = PackedParameters(
        lowered({"joined": recipe}, sources, order=order), tmp_path / "weights"
    )
    parts = [found.read(source) for source in sources.values()]
    joined = torch.cat(parts)[order]
    assert torch.equal(interleave(*joined.chunk(2)), unpack(weight))
    assert torch.equal(found.rows(sources["b"], torch.tensor([[7, 0]])), parts[1][None, [7, 0]])


def test_transposed_parameters_and_experts(tmp_path):
    wide, experts = torch.zeros(96, 40), torch.zeros(3, 48, 64)
    recipes = {"wide": Recipe(sources=("wide",), kind="linear", transposed=True)}
    weights = {"wide": integers(40, 96, 4, 32)}
    for index in range(3):
        recipes[f"e{index}"] = Recipe(sources=("experts",), kind="linear", index=index)
        weights[f"e{index}"] = integers(48, 64, 8 if index == 1 else 4, None if index == 1 else 64)
    write_weights(tmp_path / "weights", weights.items())
    found = PackedParameters(
        lowered(recipes, {"wide": wide, "experts": experts}), tmp_path / "weights"
    )
    assert torch.equal(found.read(wide), unpack(weights["wide"]).t())
    assert found.rows(wide, torch.tensor([1])) is None
    stacked = torch.stack([unpack(weights[f"e{index}"]) for index in range(3)])
    assert torch.equal(found.read(experts), stacked)
    assert torch.equal(found.read(experts), stacked)


def test_floats_and_other_tensors_are_their_own(tmp_path):
    source = torch.zeros(16, 32)
    write_weights(tmp_path / "weights", [("plain", pack(torch.ones(16, 32), "float16"))])
    recipes = {"plain": Recipe(sources=("plain",), kind="linear")}
    found = PackedParameters(lowered(recipes, {"plain": source}), tmp_path / "weights")
    assert found.read(source) is None
    assert found.read(torch.zeros(3)) is None
    assert found.rows(source, torch.tensor([0])) is None

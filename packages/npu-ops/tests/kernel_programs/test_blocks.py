"""Weights in the blocks of ggml's types, with gguf's values as the reference."""

from dataclasses import replace

import gguf
import pytest
import torch

from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.execution import Execution
from npu_ops.kernel_programs.weights import (
    BLOCK_KINDS,
    interleave,
    mix,
    pack_blocks,
    read_weights,
    unpack,
    write_weights,
)

from .conftest import (
    at_the_end_of_memory,
    in_levels,
    linear_program,
    one_sequence,
    random_blocks,
    run,
    set_scales,
    table_program,
)

# The greatest and least of float16, numbers without an implicit bit, zeros of either sign.
EXTREMES = torch.tensor([65504.0, -65504.0, 6e-8, -6e-5, 0.0, -0.0, 1.0, -0.1])
EXPONENTS = torch.tensor([0, 1, 2, 127, 252])


def size_of(kind):
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]][0]


def dequantized(kind, blocks):
    values = gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind.upper()])
    return torch.from_numpy(values)


def same_bits(left, right):
    return torch.equal(left.contiguous().view(torch.int32), right.contiguous().view(torch.int32))


def product(weight, x, kernel_set, **fields):
    return run(*linear_program(x, weight, **fields), kernel_set)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("are_extreme", [False, True])
@pytest.mark.parametrize("outputs, blocks", [(1, 1), (16, 2), (37, 3)])
def test_values_are_those_of_the_file_bit_for_bit(kind, are_extreme, outputs, blocks, generator):
    extremes = EXPONENTS if kind == "mxfp4" else EXTREMES
    scales = extremes if are_extreme else None
    inputs = blocks * size_of(kind)
    rows = random_blocks(kind, outputs, inputs, generator, scales)
    expected = dequantized(kind, rows)
    packed = pack_blocks(kind, rows, inputs=inputs)
    assert (packed.outputs, packed.inputs) == (outputs, inputs)
    assert same_bits(unpack(packed), expected)
    order = torch.randint(0, outputs, (outputs + 5,), generator=generator)
    assert same_bits(unpack(pack_blocks(kind, rows, inputs=inputs, order=order)), expected[order])
    assert same_bits(unpack(packed, order), expected[order])


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_weights_take_little_more_than_in_the_file(kind, generator):
    rows = random_blocks(kind, 64, 512, generator)
    assert pack_blocks(kind, rows, inputs=512).nbytes <= rows.nbytes * 1.04


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 97])
def test_products_are_those_of_the_values(kernel_set, kind, gated, rows, generator):
    inputs = 7 * 32 if size_of(kind) == 32 else 512
    outputs = 64 if gated else 51
    weight = pack_blocks(kind, random_blocks(kind, outputs, inputs, generator), inputs=inputs)
    x = in_levels(torch.randn(rows, inputs, generator=generator))
    found = product(weight, x, kernel_set, gated=gated)
    expected = x.double() @ unpack(weight).double().T
    most = x.double().abs() @ unpack(weight).double().abs().T
    if gated:
        (gate, up), (size, other) = (
            value.view(rows, -1, 2, 16).unbind(2) for value in (expected, most)
        )
        expected, most = (gate * up).flatten(1), (size * other).flatten(1)
    assert ((found - expected).abs() <= 1e-6 * most).all()


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_inputs_are_rounded_to_the_nearest_level(kernel_set, kind, generator):
    inputs = 512
    weight = pack_blocks(kind, random_blocks(kind, 33, inputs, generator), inputs=inputs)
    x = torch.randn(30, inputs, generator=generator)
    error = (product(weight, x, kernel_set) - x @ unpack(weight).T).abs()
    levels = x.view(30, -1, 64).abs().amax(-1).repeat_interleave(64, 1) / 127
    most = levels @ unpack(weight).abs().T / 2
    assert (error <= most * 1.001).all()
    assert error.mean() < most.mean() / 4  # they cancel


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_in_any_company(kernel_set, kind, threads, generator):
    inputs = 1024 if kind == "q4_k" else 7 * 32 if size_of(kind) == 32 else 256
    weight = pack_blocks(kind, random_blocks(kind, 96, inputs, generator), inputs=inputs)
    x = torch.randn(97, inputs, generator=generator)
    program, weights = linear_program(x, weight, gated=True, activation="silu")
    execution = Execution(program, weights, cache="float32", kernel_set=kernel_set)
    execution.reserve(32)
    together = execution.step(one_sequence(97))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in (1, 2, 3, 4, 5, 8, 13):
            rows = replace(one_sequence(count), tokens=torch.arange(97 - count, 97))
            assert torch.equal(execution.step(rows), together[97 - count :]), count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("rows", [1, 9])
def test_products_of_extreme_levels_are_exact(kernel_set, kind, rows, generator):
    """No sum of bytes is cut off: the greatest levels and inputs of either sign."""
    blocks = torch.full_like(random_blocks(kind, 32, 256, generator), 255)
    set_scales(kind, blocks, torch.tensor(120.0 if kind == "mxfp4" else 1e-3))
    signs = torch.tensor([1.0, -1.0]).repeat_interleave(128)
    x = torch.stack([torch.ones(256), -torch.ones(256), signs, -signs])[torch.arange(rows) % 4]
    weight = pack_blocks(kind, blocks, inputs=256)
    torch.testing.assert_close(
        product(weight, x, kernel_set), x @ unpack(weight).T, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("rows", [1, 9])
def test_nothing_is_read_behind_a_weight(kernel_set, kind, rows, generator):
    weight = pack_blocks(kind, random_blocks(kind, 39, 256, generator), inputs=256)
    x = torch.randn(rows, 256, generator=generator)
    expected = product(weight, x, kernel_set)
    assert torch.equal(product(at_the_end_of_memory(weight), x, kernel_set), expected)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("rows", [3, 9])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_hidden(kernel_set, kind, rows, bad, generator):
    x = torch.randn(rows, 256, generator=generator)
    x[1, 70] = bad
    weight = pack_blocks(kind, random_blocks(kind, 32, 256, generator), inputs=256)
    found = product(weight, x, kernel_set)
    assert not found[1].isfinite().any()
    assert found[0].isfinite().all()
    assert found[2:].isfinite().all()


def mixed(generator, *, alternating):
    """A weight of three kinds, or of two that alternate, and its parts."""
    kinds = ["q5_0", "q8_0"] if alternating else ["q4_k", "q6_k", "q8_0"]
    sizes = [32, 32] if alternating else [48, 16, 23]
    parts = [
        pack_blocks(kind, random_blocks(kind, size, 256, generator), inputs=256)
        for kind, size in zip(kinds, sizes, strict=True)
    ]
    return mix(parts, alternating=alternating), parts


@pytest.mark.parametrize("alternating", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 9, 70])
def test_mixed_kinds_give_the_products_of_their_parts(kernel_set, alternating, rows, generator):
    weight, parts = mixed(generator, alternating=alternating)
    x = torch.randn(rows, 256, generator=generator)
    of_parts = [product(part, x, kernel_set) for part in parts]
    expected = torch.cat(of_parts, 1)
    if alternating:
        expected = interleave(of_parts[0].T, of_parts[1].T).T
        gated = product(weight, x, kernel_set, gated=True, activation="relu")
        assert torch.equal(gated, of_parts[0].relu() * of_parts[1])
    assert torch.equal(product(weight, x, kernel_set), expected)


@pytest.mark.parametrize("alternating", [False, True])
def test_mixed_kinds_are_written_and_read(tmp_path, alternating, generator):
    weight, parts = mixed(generator, alternating=alternating)
    single = parts[0]
    write_weights(tmp_path / "weights", [("mixed", weight), ("single", single)])
    found = read_weights(tmp_path / "weights")
    assert found.keys() == {"mixed", "single"}
    assert [part.kind for part in found["mixed"].parts] == [part.kind for part in parts]
    assert found["mixed"].alternating == alternating
    assert found["mixed"].nbytes == weight.nbytes
    for name, expected in (("mixed", weight), ("single", single)):
        assert torch.equal(unpack(found[name]), unpack(expected))


@pytest.mark.parametrize("kind", [*BLOCK_KINDS, "mixed"])
def test_an_entry_is_its_row_of_the_weight(kernel_set, kind, generator):
    if kind == "mixed":
        table, _ = mixed(generator, alternating=False)
    else:
        table = pack_blocks(kind, random_blocks(kind, 37, 256, generator), inputs=256)
    program = table_program(table, scale=0.5)
    assert torch.equal(run(program, {"table": table}, kernel_set), unpack(table) * 0.5)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scales_that_are_not_finite_are_refused(kind, bad, generator):
    blocks = random_blocks(kind, 5, 512, generator)
    scales = torch.tensor([255 if kind == "mxfp4" else bad])
    block = random_blocks(kind, 1, size_of(kind), generator, scales)[0]
    blocks[3, -len(block) :] = block
    with pytest.raises(OperatorInputError) as caught:
        pack_blocks(kind, blocks, inputs=512)
    assert caught.value.code == "weight-values"


def test_sizes_that_no_kernel_has(generator):
    q8, q4 = (random_blocks(kind, 16, 256, generator) for kind in ("q8_0", "q4_k"))
    packed = pack_blocks("q8_0", q8, inputs=256)
    narrow = pack_blocks("q8_0", q8[:, : 34 * 2], inputs=64)
    calls = [
        lambda: pack_blocks("iq1_s", q8, inputs=256),
        lambda: pack_blocks("mixed", q8, inputs=256),
        lambda: pack_blocks("q8_0", q8, inputs=250),
        lambda: pack_blocks("q8_0", q8, inputs=0),
        lambda: pack_blocks("q8_0", q8[:, :-1], inputs=256),
        lambda: pack_blocks("q8_0", q8.float(), inputs=256),
        lambda: pack_blocks("q8_0", q8[:0], inputs=256),
        lambda: pack_blocks("q4_k", q4[:, :72], inputs=128),
        lambda: pack_blocks("q8_0", q8, inputs=256, order=torch.tensor([16])),
        lambda: pack_blocks("q8_0", q8, inputs=256, order=torch.tensor([-1])),
        lambda: mix([packed, narrow]),
        lambda: mix([replace(packed, outputs=15), packed]),
        lambda: mix([packed, packed, packed], alternating=True),
        lambda: mix([]),
    ]
    for call in calls:
        with pytest.raises(OperatorInputError) as caught:
            call()
        assert caught.value.code == "weight-shape"

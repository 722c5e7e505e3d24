"""Sparse attention of kernel programs: its choices, its bounds, and its refusals."""

import itertools
from dataclasses import replace

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.execution import Execution
from npu_ops.kernel_programs.program import (
    Append,
    Attend,
    Columns,
    Embed,
    KernelProgram,
    LayerShape,
    Rows,
)
from npu_ops.kernel_programs.reference import ReferenceExecution
from npu_ops.kernel_programs.sparse_attention import SparseAttention, why_not_sparse
from npu_ops.kernel_programs.weights import pack

from .test_execution import POSITIONS, VOCABULARY, a_layer

CACHES = ["float32", "bfloat16", "u8"]
KEY_HEADS, GROUP, KEY, VALUE = 2, 3, 20, 12
SLOTS = 400  # tokens that differ


def an_attention(generator, *, key_heads=KEY_HEADS, group=GROUP, key=KEY):
    """A program that attends by its tokens, in numbers that every cache represents exactly.

    Of each key and value the first two numbers are -127 and 128, so that 8 bits have steps of 1.
    Bounds are whole numbers times a power of two: none is rounded, so that equal ones are equal.
    """
    heads = key_heads * group
    numbers = torch.randint(-100, 100, (SLOTS, heads * key), generator=generator).float()
    kept = torch.randint(-40, 41, (SLOTS, key_heads, key + VALUE), generator=generator).float()
    for first in (0, key):
        kept[..., first], kept[..., first + 1] = -127, 128
    joined = torch.cat([numbers, kept[..., :key].flatten(1), kept[..., key:].flatten(1)], 1)
    ends = [0, heads * key, heads * key + key_heads * key, joined.shape[1]]
    queries, keys, values = (
        Columns(0, start, end - start) for start, end in itertools.pairwise(ends)
    )
    out = Columns(1, 0, heads * VALUE)
    program = KernelProgram(
        instructions=(
            Embed(out=Columns(0, 0, joined.shape[1]), table="table"),
            Append(layer=0, keys=keys, values=values),
            Attend(layer=0, queries=queries, out=out, heads=heads, scale=2.0**-12),
        ),
        widths=(joined.shape[1], heads * VALUE),
        weights={},
        layers=(LayerShape(key_heads, key, VALUE),),
        logits=out,
        vocabulary=SLOTS,
    )
    return program, {"table": pack(joined, "float32")}


def rows_of(start, tokens, table, *, is_decode=False):
    """Rows of one sequence with given tokens."""
    slots = torch.arange(start, start + len(tokens), dtype=torch.int32)
    return Rows(
        tokens=tokens,
        positions=slots.long() % POSITIONS,
        sequences=torch.zeros_like(slots),
        slots=slots,
        block_tables=table.to(torch.int32)[None],
        kept=torch.arange(len(tokens)),
        is_decode=is_decode,
    )


@pytest.mark.parametrize("cache", CACHES)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_steps_of_one_token_are_those_of_the_reference(kernel_set, cache, data):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    program, weights = an_attention(
        generator,
        key_heads=data.draw(st.integers(1, 3)),
        group=data.draw(st.sampled_from([1, 3, 5])),
        key=data.draw(st.sampled_from([7, 16, 20])),
    )
    top_k = 16 * data.draw(st.integers(4, 9))
    chosen = SparseAttention(
        top_k=top_k, after=data.draw(st.sampled_from([None, top_k, top_k + 37]))
    )
    execution = Execution(
        program, weights, cache=cache, kernel_set=kernel_set, sparse_attention=chosen
    )
    reference = ReferenceExecution(program, weights, sparse_attention=chosen)
    for one in (execution, reference):
        one.reserve(32)
    table = torch.randperm(32, generator=generator)[:24]
    start = data.draw(st.integers(1, 340))
    tokens = torch.randperm(SLOTS, generator=generator)
    prompt = rows_of(0, tokens[:start], table)
    # Products of bfloat16 round queries and weights too, by 2^-9 of values up to 128.
    rounds = cache == "bfloat16" and kernel_set.endswith("bf16")
    near = {"rtol": 1e-2, "atol": 0.1} if rounds else {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(execution.step(prompt), reference.step(prompt), **near)
    for slot in range(start, start + 20):
        one = rows_of(slot, tokens[slot : slot + 1], table, is_decode=True)
        found, expected = execution.step(one), reference.step(one)
        torch.testing.assert_close(found, expected, **near)


@pytest.mark.parametrize("cache", CACHES)
def test_what_is_left_out_makes_a_difference(kernel_set, cache, generator):
    program, weights = an_attention(generator)
    made = [
        Execution(program, weights, cache=cache, kernel_set=kernel_set, sparse_attention=one)
        for one in (None, SparseAttention(top_k=64), SparseAttention(top_k=320))
    ]
    tokens, table = torch.arange(300), torch.arange(20)
    results = []
    for one in made:
        one.reserve(20)
        one.step(rows_of(0, tokens, table))
        results.append(one.step(rows_of(300, torch.tensor([5]), table, is_decode=True)))
    dense, sparse, all_of_it = results
    assert (sparse - dense).abs().max() > 0.01
    assert torch.equal(all_of_it, dense)


def test_several_sequences_choose_for_themselves(kernel_set, generator):
    program, weights = an_attention(generator)
    chosen = SparseAttention(top_k=80)
    execution = Execution(
        program, weights, cache="float32", kernel_set=kernel_set, sparse_attention=chosen
    )
    execution.reserve(64)
    lengths, tables = [290, 3, 81, 200], torch.randperm(64, generator=generator).view(4, 16)
    tables = torch.cat([tables, torch.zeros(4, 4, dtype=torch.int64)], 1)
    tables[0, 16:] = torch.tensor([tables[3, 13], tables[3, 14], tables[3, 15], 0])
    for length, table in zip(lengths, tables, strict=True):
        execution.step(rows_of(0, torch.arange(length) + 7, table))
    alone = [
        execution.step(rows_of(length, torch.tensor([length]), table, is_decode=True))
        for length, table in zip(lengths, tables, strict=True)
    ]
    slots = torch.tensor(lengths, dtype=torch.int32)
    together = Rows(
        tokens=slots.long(),
        positions=slots.long(),
        sequences=torch.arange(4, dtype=torch.int32),
        slots=slots,
        block_tables=tables.to(torch.int32),
        kept=torch.arange(4),
        is_decode=True,
    )
    assert torch.equal(execution.step(together), torch.cat(alone))


def test_a_prompt_is_dense(kernel_set, generator):
    program, weights = an_attention(generator)
    dense, sparse = (
        Execution(program, weights, cache="float32", kernel_set=kernel_set, sparse_attention=one)
        for one in (None, SparseAttention(top_k=64))
    )
    for one in (dense, sparse):
        one.reserve(32)
    rows = rows_of(0, torch.arange(333), torch.arange(32))
    assert torch.equal(dense.step(rows), sparse.step(rows))
    last = rows_of(333, torch.tensor([8]), torch.arange(32))
    assert torch.equal(dense.step(last), sparse.step(last))
    with pytest.raises(OperatorInputError, match="must be distinct") as caught:
        sparse.step(replace(rows, is_decode=True))
    assert caught.value.code == "kernel-program"


def test_what_is_no_number_is_never_left_out(kernel_set, generator):
    program, weights = an_attention(generator)
    table = weights["table"]
    heads = KEY_HEADS * GROUP
    numbers = torch.randn(SLOTS, heads * KEY + KEY_HEADS * (KEY + VALUE), generator=generator)
    numbers[100, heads * KEY + 3] = torch.nan  # of a key of the first head
    execution = Execution(
        program, {"table": pack(numbers, "float32")}, cache="float32", kernel_set=kernel_set,
        sparse_attention=SparseAttention(top_k=64),
    )  # fmt: skip
    assert table.outputs == SLOTS
    execution.reserve(32)
    execution.step(rows_of(0, torch.arange(300), torch.arange(32)))
    found = execution.step(rows_of(300, torch.tensor([300]), torch.arange(32), is_decode=True))[0]
    first, second = found.view(KEY_HEADS, -1)
    assert first.isnan().all()
    assert second.isfinite().all()


# Bounds, read from the blocks' bytes


def keys_and_bounds(content, cache, *, key_heads, key, value):
    """Keys (key heads, key, 16) of a block and their bounds (key heads, 2, key), float32."""
    bytes_of = {"float32": 4, "bfloat16": 2, "u8": 1}[cache]
    padded_value, padded_key = -(-value // 16) * 16, -(-key // 16) * 16
    head = 16 * (key + padded_value) * bytes_of + (256 if cache == "u8" else 0)
    raw = content.numpy()
    keys = []
    for index in range(key_heads):
        own = raw[index * head : (index + 1) * head]
        levels = own[: 16 * key * bytes_of]
        if cache == "u8":
            numbers = own[16 * (key + padded_value) :].view(numpy.float32)
            keys.append(levels.reshape(key, 16) * numbers[:16] + numbers[16:32])
        elif cache == "bfloat16":
            wide = levels.view(numpy.uint16).astype(numpy.uint32) << 16
            keys.append(wide.view(numpy.float32).reshape(key, 16))
        else:
            keys.append(levels.view(numpy.float32).reshape(key, 16))
    end = key_heads * head
    bounds = raw[end : end + key_heads * 4 * padded_key].view(numpy.uint16).astype(numpy.uint32)
    bounds = (bounds << 16).view(numpy.float32).reshape(key_heads, 2, padded_key)
    return numpy.stack(keys), bounds[..., :key]


@pytest.mark.parametrize("cache", CACHES)
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_bounds_hold_whatever_was_written_rewound_and_copied(kernel_set, cache, data):
    shape = {
        "key_heads": data.draw(st.integers(1, 3)),
        "key_size": data.draw(st.integers(1, 40)),
        "value_size": data.draw(st.integers(1, 20)),
    }
    program, weights = a_layer(heads=shape["key_heads"] * 2, **shape)
    execution = Execution(
        program, weights, cache=cache, kernel_set=kernel_set,
        sparse_attention=SparseAttention(top_k=64),
    )  # fmt: skip
    execution.reserve(32)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    table = torch.randperm(32, generator=generator)[:16]
    length = 0
    for _ in range(data.draw(st.integers(1, 6))):
        count = min(data.draw(st.integers(1, 90)), 256 - length)
        ones = data.draw(st.booleans())
        tokens = torch.randint(0, VOCABULARY, (count,), generator=generator)
        for part in tokens.split(1) if ones else [tokens]:
            if len(part):
                execution.step(rows_of(length, part, table, is_decode=ones))
                length += len(part)
        length = data.draw(st.integers(0, length))  # rewound
        free = [block for block in range(32) if block not in table]
        place = data.draw(st.integers(0, 15))
        how = data.draw(st.sampled_from(["", "copy", "save"]))
        if how == "copy":  # as a fork that is written does
            execution.copy_block(int(table[place]), free[0])
        elif how == "save":
            execution.write_blocks([free[0]], execution.read_blocks([int(table[place])]))
        if how:
            table[place] = free[0]
    for index in range(length // 16):
        (content,) = execution.read_blocks([int(table[index])])
        keys, bounds = keys_and_bounds(
            content, cache, key_heads=shape["key_heads"], key=shape["key_size"],
            value=shape["value_size"],
        )  # fmt: skip
        least, most = keys.min(-1), keys.max(-1)
        near = 1e-5 * numpy.abs(keys).max()  # of one rounding of scale * level + least
        assert (bounds[:, 0] <= least + near).all()
        assert (bounds[:, 1] >= most - near).all()
        # Nor are they of other keys: as near as bfloat16 is.
        assert (bounds[:, 0] >= least - numpy.abs(least) / 64 - near).all()
        assert (bounds[:, 1] <= most + numpy.abs(most) / 64 + near).all()


# Refusals


@pytest.mark.parametrize(
    "top_k, after", [(63, None), (48, None), (True, None), (64, 63), (64, "9")]
)
def test_other_numbers_are_refused(top_k, after):
    with pytest.raises(OperatorInputError) as caught:
        SparseAttention(top_k=top_k, after=after)
    assert caught.value.code == "sparse-attention"
    assert repr(top_k if after is None else after) in str(caught.value)


@pytest.mark.parametrize(
    "attend, said",
    [
        ({"window": 19}, "a window"),
        ({"soft_cap": 2.0}, "a soft cap"),
        ({"sinks": "sinks"}, "attention sinks"),
        ({"slopes": "slopes"}, "ALiBi"),
    ],
)
def test_attention_that_it_would_break_is_refused(attend, said):
    program, weights = a_layer(**attend)
    with pytest.raises(OperatorInputError, match=said) as caught:
        Execution(program, weights, cache="float32", sparse_attention=SparseAttention(top_k=64))
    assert caught.value.code == "sparse-attention"


def test_a_program_without_attention_has_nothing_to_choose():
    program, _ = a_layer()
    assert why_not_sparse(program) is None
    rest = tuple(one for one in program.instructions if not isinstance(one, Attend))
    assert why_not_sparse(replace(program, instructions=rest)) == "does not attend to a cache"


def test_it_says_its_numbers():
    assert str(SparseAttention(top_k=2048)) == "2,048"
    assert str(SparseAttention(top_k=2048, after=4096)) == "2,048 after 4,096"

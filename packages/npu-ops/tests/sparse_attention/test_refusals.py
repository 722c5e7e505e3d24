"""Refusals of the sparse attention ops: class, code, value, and the same words from the fake."""

import pytest
import torch


def f(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def i(*values):
    return torch.tensor(values, dtype=torch.int32)


def i8(*shape):
    return torch.zeros(shape, dtype=torch.int8)


def picks(*shape):
    return torch.zeros(shape, dtype=torch.int32)


# query, key, weights of two sequences; pages of 16.
INDEXER = (f(2, 3, 4, 8), f(2, 20, 1, 8), f(2, 3, 4))
RAGGED = (f(6, 4, 8), f(40, 1, 8), f(6, 4))
PAGED = (f(2, 3, 4, 8), f(5, 16, 1, 8), f(2, 3, 4))
ATTENTION = (f(2, 3, 4, 8), f(2, 20, 1, 8), f(2, 20, 1, 6), picks(2, 3, 1, 5), 1.0, 1)
TABLE = torch.tensor([[0, 1], [4, 3]])
PAGES = {"layout_key": "PA_BSND", "block_table": TABLE, "actual_seq_lengths_key": i(20, 32)}
QUANTIZED = (INDEXER[0].to(torch.int8), INDEXER[1].to(torch.int8), INDEXER[2])
SUMS = {"layout_query": "TND", "layout_key": "TND"}


def replaced(arguments, at, value):
    return (*arguments[:at], value, *arguments[at + 1 :])


# Faults of shapes, dtypes and options; the fake refuses them too.
BY_SHAPE = [
    ("lightning_indexer", INDEXER, {"layout_query": "BNSD"}, "op-layout", 'got "BNSD"'),
    ("lightning_indexer", QUANTIZED, {}, "op-dtype", "`query_dequant_scale` must be given for"),
    ("lightning_indexer", QUANTIZED, {"query_dequant_scale": f(2, 3, 4)}, "op-dtype",
     "`key_dequant_scale` must be given for"),
    ("lightning_indexer", INDEXER, {"query_dequant_scale": f(2, 3, 4)}, "op-dtype", "got one"),
    ("lightning_indexer", QUANTIZED,
     {"query_dequant_scale": f(2, 3, 4).double(), "key_dequant_scale": f(2, 20, 1)}, "op-dtype",
     "must be float32"),
    ("lightning_indexer", QUANTIZED,
     {"query_dequant_scale": f(2, 3, 4), "key_dequant_scale": f(2, 20)}, "op-shape", "(2, 20)"),
    ("lightning_indexer",
     (i8(1, 1, 1, 131_072), i8(1, 1, 1, 131_072), f(1, 1, 1)),
     {"query_dequant_scale": f(1, 1, 1), "key_dequant_scale": f(1, 1, 1)}, "op-shape",
     "at most 131071, got query (1, 1, 1, 131072)"),
    ("lightning_indexer", INDEXER, {"layout_key": "TND"}, "op-layout", 'got "TND"'),
    ("lightning_indexer", RAGGED, {"layout_query": "TND"}, "op-layout", 'layout_query "TND"'),
    ("lightning_indexer", INDEXER, {"sparse_count": 0}, "op-value", "got 0"),
    ("lightning_indexer", INDEXER, {"sparse_mode": 1}, "op-value", "got 1"),
    ("lightning_indexer", tuple(t.double() for t in INDEXER), {}, "op-dtype", "torch.float64"),
    ("sparse_flash_attention", (*(t.half() for t in ATTENTION[:3]), *ATTENTION[3:]), {}, "op-dtype",
     "must be float32 or bfloat16, got torch.float16"),
    ("lightning_indexer", replaced(INDEXER, 1, INDEXER[1].bfloat16()), {}, "op-dtype",
     "key torch.bfloat16"),
    ("lightning_indexer", replaced(INDEXER, 2, INDEXER[2].double()), {}, "op-dtype",
     "`weights` must be"),
    ("lightning_indexer", replaced(INDEXER, 0, f(6, 4, 8)), {}, "op-shape", "(6, 4, 8)"),
    ("lightning_indexer", replaced(INDEXER, 1, f(2, 20, 2, 8)), {}, "op-shape", "(2, 20, 2, 8)"),
    ("lightning_indexer", replaced(INDEXER, 1, f(2, 20, 1, 7)), {}, "op-shape", "(2, 20, 1, 7)"),
    ("lightning_indexer", replaced(INDEXER, 1, f(3, 20, 1, 8)), {}, "op-shape", "(3, 20, 1, 8)"),
    ("lightning_indexer", replaced(INDEXER, 2, f(2, 3, 5)), {}, "op-shape", "weights (2, 3, 5)"),
    ("lightning_indexer", RAGGED, SUMS, "op-lengths", "got None"),
    ("lightning_indexer", RAGGED, SUMS | {"actual_seq_lengths_query": i(2, 6)}, "op-lengths",
     "got None"),
    ("lightning_indexer", RAGGED, SUMS | {"actual_seq_lengths_query": i(2, 6).view(1, 2)},
     "op-lengths", "(1, 2)"),
    ("lightning_indexer", INDEXER, {"actual_seq_lengths_query": i(1, 2, 3)}, "op-lengths",
     "got (3,), 2 sequences"),
    ("lightning_indexer", INDEXER, {"actual_seq_lengths_key": f(2)}, "op-dtype",
     "`actual_seq_lengths_key` must be int32"),
    ("lightning_indexer", INDEXER, {"block_table": TABLE}, "op-block-table", "got one"),
    ("lightning_indexer", PAGED, PAGES | {"block_table": None}, "op-block-table", "got None"),
    ("lightning_indexer", PAGED, PAGES | {"block_table": TABLE[:1]}, "op-block-table", "(1, 2)"),
    ("lightning_indexer", PAGED, PAGES | {"block_table": f(2, 2)}, "op-dtype",
     "`block_table` must"),
    ("lightning_indexer", replaced(PAGED, 1, f(5, 0, 1, 8)), PAGES, "op-block-table",
     "(5, 0, 1, 8)"),
    ("lightning_indexer", PAGED, PAGES | {"actual_seq_lengths_key": None}, "op-lengths",
     "`actual_seq_lengths_key` must be given"),
    ("sparse_flash_attention", replaced(ATTENTION, 5, 0), {}, "op-value", "got 0"),
    ("sparse_flash_attention", replaced(ATTENTION, 5, 2**40), {}, "op-value", str(2**40)),
    ("sparse_flash_attention", replaced(ATTENTION, 3, picks(2, 3, 1, 0)), {}, "op-value",
     "(2, 3, 1, 0)"),
    ("sparse_flash_attention", replaced(ATTENTION, 3, picks(2, 3, 5)), {}, "op-shape",
     "sparse_indices (2, 3, 5)"),
    ("sparse_flash_attention", replaced(ATTENTION, 3, picks(2, 4, 1, 5)), {}, "op-shape",
     "sparse_indices (2, 4, 1, 5)"),
    ("sparse_flash_attention", replaced(ATTENTION, 3, picks(2, 3, 1, 5).long()), {}, "op-dtype",
     "torch.int64"),
    ("sparse_flash_attention", replaced(ATTENTION, 2, f(2, 19, 1, 6)), {}, "op-shape",
     "value (2, 19, 1, 6)"),
    ("sparse_flash_attention", replaced(ATTENTION, 2, ATTENTION[2].bfloat16()), {}, "op-dtype",
     "value torch.bfloat16"),
    ("sparse_flash_attention", ATTENTION, {"query_rope": f(2, 3, 4, 2)}, "op-shape",
     "got only query_rope"),
    ("sparse_flash_attention", ATTENTION,
     {"query_rope": f(2, 3, 4, 2), "key_rope": f(2, 20, 1, 3)}, "op-shape", "(2, 20, 1, 3)"),
    ("sparse_flash_attention", ATTENTION,
     {"query_rope": f(2, 3, 5, 2), "key_rope": f(2, 20, 1, 2)}, "op-shape", "(2, 3, 5, 2)"),
    ("sparse_flash_attention", ATTENTION,
     {"query_rope": f(2, 3, 4, 2), "key_rope": f(2, 21, 1, 2)}, "op-shape", "(2, 21, 1, 2)"),
    ("sparse_flash_attention", ATTENTION, {"layout_kv": "PA_BNSD"}, "op-layout", 'got "PA_BNSD"'),
    ("sparse_flash_attention", ATTENTION, {"sparse_mode": -3}, "op-value", "got -3"),
]  # fmt: skip

# Faults of values.
BY_VALUE = [
    ("lightning_indexer", INDEXER, {"actual_seq_lengths_key": i(20, 21)}, "op-lengths", "got 21"),
    ("lightning_indexer", INDEXER, {"actual_seq_lengths_key": i(-1, 20)}, "op-lengths", "got -1"),
    ("lightning_indexer", INDEXER, {"actual_seq_lengths_query": i(3, 4)}, "op-lengths", "got 4"),
    ("lightning_indexer", RAGGED,
     SUMS | {"actual_seq_lengths_query": i(4, 3), "actual_seq_lengths_key": i(9, 40)},
     "op-lengths", "between 4 and 6 for sequence 1, got 3"),
    ("lightning_indexer", RAGGED,
     SUMS | {"actual_seq_lengths_query": i(4, 6), "actual_seq_lengths_key": i(9, 41)},
     "op-lengths", "got 41"),
    ("lightning_indexer", PAGED, PAGES | {"actual_seq_lengths_key": i(20, 33)}, "op-block-table",
     "got 2 pages of 16 for sequence 1 of 33 keys. Pass 3 columns"),
    ("lightning_indexer", PAGED, PAGES | {"actual_seq_lengths_key": torch.tensor([20, 2**40])},
     "op-lengths", str(2**40)),
    ("lightning_indexer", PAGED, PAGES | {"block_table": TABLE + 1}, "op-block-table", "got 5"),
    ("lightning_indexer", PAGED, PAGES | {"block_table": TABLE - 1}, "op-block-table", "got -1"),
    ("sparse_flash_attention", replaced(ATTENTION, 3, picks(2, 3, 1, 5) + 20), {}, "op-index",
     "got 20 for query 0 of sequence 0 of 20 blocks"),
    ("sparse_flash_attention", replaced(ATTENTION, 3, picks(2, 3, 1, 5) - 2), {}, "op-index",
     "got -2"),
    ("sparse_flash_attention", replaced(replaced(ATTENTION, 5, 16), 3, picks(2, 3, 1, 5) + 2), {},
     "op-index", "got 2 for query 0 of sequence 0 of 2 blocks"),
    ("sparse_flash_attention", ATTENTION, {"actual_seq_lengths_kv": i(20, 0)}, "op-index",
     "sequence 1 of 0 blocks"),
    ("sparse_flash_attention", replaced(ATTENTION, 5, 2**31 - 1),
     {"actual_seq_lengths_kv": i(20, 21)}, "op-lengths", "actual_seq_lengths_kv"),
]  # fmt: skip


def refusal(op, arguments, options, device):
    def moved(value):
        return value.to(device) if isinstance(value, torch.Tensor) else value

    with pytest.raises(ValueError) as caught:
        getattr(torch.ops.npu, op)(
            *map(moved, arguments), **{key: moved(value) for key, value in options.items()}
        )
    return str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    "op, arguments, options, code, words, devices",
    [(*row, ("npu", "meta")) for row in BY_SHAPE] + [(*row, ("npu",)) for row in BY_VALUE],
)
def test_wrong_arguments_are_refused_alike_on_each_device(
    op, arguments, options, code, words, devices
):
    text = refusal(op, arguments, options, "cpu")
    assert text.startswith(f"npu.{op}: ")
    assert text.endswith(f"[{code}]")
    assert words in text
    for device in devices:
        assert refusal(op, arguments, options, device) == text


def test_indices_of_padding_are_not_looked_at():
    indices = picks(2, 3, 1, 5)
    indices[:, 1:] = 9**9
    arguments = replaced(ATTENTION, 3, indices)
    y = torch.ops.npu.sparse_flash_attention(*arguments, actual_seq_lengths_query=i(1, 1))
    assert y.shape == (2, 3, 4, 6)


def test_tensors_of_two_devices_are_refused():
    with pytest.raises(RuntimeError, match=r"\[device-mix\]"):
        torch.ops.npu.lightning_indexer(INDEXER[0].to("npu"), *INDEXER[1:])

"""Sparse attention as programs of static sizes, in every layout, against the ops' references."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import openvino as ov
import pytest
import torch

from npu_compiler.lowering.capability import HOST_IS_BETTER
from npu_ops.sparse_attention import lightning_indexer, sparse_flash_attention

npu = torch.ops.npu
HEADS, WIDTH, ROPE, VALUE = 3, 16, 8, 24
LAYOUTS = [("BSND", "BSND"), ("TND", "TND"), ("BSND", "PA_BSND"), ("TND", "PA_BSND")]
# Per sequence; the second has no keys at all, and the third more queries than keys.
QUERIES, KEYS = (4, 2, 3), (37, 0, 2)


def nan_of(*shape):
    return torch.full(shape, torch.nan)


def placed(layouts, *, lengths_dtype=torch.int32):
    """Queries, caches and options with NaN wherever nobody may read."""
    layout_query, layout_key = layouts
    widths = {"query": WIDTH, "rope": ROPE, "weights": 1}
    rows = {name: [torch.randn(n, HEADS, w) for n in QUERIES] for name, w in widths.items()}
    caches = {"key": WIDTH, "key_rope": ROPE, "value": VALUE}
    keys = {name: [torch.randn(n, 1, w) for n in KEYS] for name, w in caches.items()}
    ends = layout_query == "TND"
    options = {"layout_query": layout_query}
    counts = torch.tensor(QUERIES), torch.tensor(KEYS)
    key_counts = counts[1].cumsum(0) if layout_key == "TND" else counts[1]
    options["query_lengths"] = (counts[0].cumsum(0) if ends else counts[0]).to(lengths_dtype)
    options["key_lengths"] = key_counts.to(lengths_dtype)
    options["layout_key"], options["block_table"] = layout_key, None
    given = {}
    for name, parts in rows.items():
        if ends:
            given[name] = torch.cat([*parts, nan_of(2, HEADS, widths[name])])
        else:
            given[name] = nan_of(len(parts), 5, HEADS, widths[name])
            for to, part in zip(given[name], parts, strict=True):
                to[: len(part)] = part
    given["weights"] = given["weights"].squeeze(-1)
    order = torch.tensor([[3, 0, 4], [-9, 7000, -1], [1, -1, -1]], dtype=torch.int32)
    for name, parts in keys.items():
        width = caches[name]
        if layout_key == "TND":
            given[name] = torch.cat([*parts, nan_of(3, 1, width)])
        elif layout_key == "BSND":
            given[name] = nan_of(len(parts), 41, 1, width)
            for to, part in zip(given[name], parts, strict=True):
                to[: len(part)] = part
        else:
            given[name] = nan_of(6, 16, 1, width)
            options["block_table"] = order
            for pages, part in zip(order, parts, strict=True):
                for at in range(len(part)):
                    given[name][pages[at // 16], at % 16] = part[at]
    return given, options


def tables(options, key_name, layout_name):
    named = {
        "actual_seq_lengths_query": options["query_lengths"],
        f"actual_seq_lengths_{key_name}": options["key_lengths"],
        "block_table": options["block_table"],
    }
    layouts = {"layout_query": options["layout_query"], layout_name: options["layout_key"]}
    return {name: value for name, value in named.items() if value is not None}, layouts


def picked_blocks(query, layout, block):
    """Some blocks of each row's sequence, -1 among them, and nothing but -1 for padding."""
    indices = torch.full((*query.shape[:-2], 1, 7), -1, dtype=torch.int32)
    rows = indices.split([*QUERIES, 2]) if layout == "TND" else indices
    for row, queries, keys in zip(rows, QUERIES, KEYS, strict=False):
        blocks = -(-keys // block)
        row[:queries] = torch.randint(-1, max(blocks, 0), row[:queries].shape, dtype=torch.int32)
    return indices


def same(result, reference):
    torch.testing.assert_close(result, reference, rtol=2e-5, atol=2e-5)


def run(lowers, function, *inputs):
    """Results of the program; `lowers` compares them with the op's kernel."""
    return lowers(function, *inputs).results[0]


@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
def test_indexer_equals_its_reference(lowers, layouts):
    given, options = placed(layouts)
    named, fixed = tables(options, "key", "layout_key")
    names, values = list(named), list(named.values())

    def of(op, count, mode):
        return lambda q, k, w, *more: op(
            q, k, w, **dict(zip(names, more, strict=True)), **fixed,
            sparse_count=count, sparse_mode=mode,
        )  # fmt: skip

    inputs = (given["query"], given["key"], given["weights"], *values)
    cases = [(count, mode) for count in (1, 5, 64) for mode in (0, 3)]
    found = lowers({str(case): of(npu.lightning_indexer, *case) for case in cases}, *inputs).results
    for (count, mode), picked in zip(cases, found, strict=True):
        assert torch.equal(picked, of(lightning_indexer.reference, count, mode)(*inputs))
        assert (picked >= 0).any()
        assert (picked == -1).any() or (layouts[0], count) == ("BSND", 1)


@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_equals_its_reference(lowers, layouts, dtype):
    given, options = placed(layouts, lengths_dtype=torch.int64)
    named, fixed = tables(options, "kv", "layout_kv")
    names, values = list(named), list(named.values())
    blocks = (1, 4)
    indices = [picked_blocks(given["query"], layouts[0], block) for block in blocks]

    def of(op, block, mode):
        return lambda q, k, v, of_one, of_four, qr, kr, *more: op(
            q, k, v, of_one if block == 1 else of_four, 0.3, block, query_rope=qr, key_rope=kr,
            **dict(zip(names, more, strict=True)), **fixed, sparse_mode=mode,
        )  # fmt: skip

    floats = [given[name].to(dtype) for name in ("query", "key", "value", "rope", "key_rope")]
    inputs = (*floats[:3], *indices, *floats[3:], *values)
    cases = [(block, mode) for block in blocks for mode in (0, 3)]
    ours = {str(case): of(npu.sparse_flash_attention, *case) for case in cases}
    tolerance = 2e-5 if dtype is torch.float32 else 2e-2
    for case, y in zip(cases, lowers(ours, *inputs).results, strict=True):
        reference = of(sparse_flash_attention.reference, *case)(*inputs)
        torch.testing.assert_close(y, reference, rtol=tolerance, atol=tolerance)
        assert (y == 0).all(-1).any()
        assert (y != 0).any()


def test_scores_that_are_equal_or_not_numbers_are_picked_as_the_op_picks(lowers):
    key = torch.zeros(1, 6, 1, 4)
    key[0, 4, 0] = torch.nan
    key[0, 2, 0, 0] = torch.inf
    query, weights = torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1)
    run(
        lowers,
        lambda q, k, w: npu.lightning_indexer(q, k, w, sparse_count=3, sparse_mode=0),
        query, key, weights,
    )  # fmt: skip


def both(query, key, weights, value):
    picked = npu.lightning_indexer(query * 2, key, weights, sparse_count=8)
    return npu.sparse_flash_attention(query, key, value, picked, 0.25, 1).relu()


def arguments(keys=40):
    torch.manual_seed(0)
    shapes = (2, 3, 4, 16), (2, keys, 1, 16), (2, 3, 4), (2, keys, 1, 24)
    return [torch.randn(*shape, device="npu") for shape in shapes]


def test_a_device_program_holds_both_where_it_is_asked_for(compiled):
    function = compiled(both, options={"target": "openvino"})
    with torch.no_grad():
        same(function(*arguments()), both(*arguments()))
    assert (function.programs, function.eager_ops) == (1, [])


def test_the_host_kernels_stay_where_the_host_does_the_arithmetic(compiled, monkeypatch, on_npu):
    monkeypatch.delenv("NPU_COMPILE_TARGET")
    function = compiled(both, options={"strict": True})
    with torch.no_grad():
        same(function(*arguments()), both(*arguments()))
    left = {(node.op, node.reason) for record in function.records for node in record.eager}
    of_the_host = {
        ("npu.lightning_indexer.default", HOST_IS_BETTER),
        ("npu.sparse_flash_attention.default", HOST_IS_BETTER),
    }
    assert left == (set() if on_npu else of_the_host)


def test_sizes_that_vary_stay_with_the_host_kernels(compiled, on_npu):
    function = compiled(both, dynamic=True, options={"target": "openvino"})
    with torch.no_grad():
        same(function(*arguments()), both(*arguments()))
        same(function(*arguments(keys=33)), both(*arguments(keys=33)))
    assert ("npu.lightning_indexer.default" in function.eager_ops) is not on_npu


# A separate process: a fault of the plugin must not end the tests.
ON_THE_PLUGIN = """
import sys
import numpy as np
import openvino as ov

options = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}
options["INFERENCE_PRECISION_HINT"] = "f32"  # A processor with bfloat16 would compute in it.
given = np.load("inputs.npz")
core = ov.Core()
compiled = core.compile_model(core.read_model("model.xml"), "NPU", options)
results = compiled([given[f"arr_{index}"] for index in range(len(given.files))])
np.savez("results.npz", *[results[index] for index in range(len(results))])
"""


@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
def test_the_plugin_of_the_npu_takes_both_with_equal_results(lowers, tmp_path, layouts):
    given, options = placed(layouts)
    of_key, fixed_key = tables(options, "key", "layout_key")
    of_kv, fixed_kv = tables(options, "kv", "layout_kv")
    count = len(of_key)

    def whole(query, key, weights, value, *more):
        picked = npu.lightning_indexer(
            query, key, weights, **dict(zip(of_key, more, strict=True)), **fixed_key, sparse_count=5
        )
        return picked, npu.sparse_flash_attention(
            query, key, value, picked, 0.3, 1, **dict(zip(of_kv, more, strict=True)), **fixed_kv
        )

    more = list(of_key.values())
    assert len(more) == count == len(of_kv)
    inputs = (given["query"], given["key"], given["weights"], given["value"], *more)
    lowered = lowers(whole, *inputs)
    ov.save_model(lowered.lowered.model, tmp_path / "model.xml", compress_to_fp16=False)
    np.savez(tmp_path / "inputs.npz", *[part.numpy() for part in inputs])
    subprocess.run([sys.executable, "-c", ON_THE_PLUGIN], cwd=tmp_path, timeout=300, check=True)
    found = np.load(tmp_path / "results.npz")
    picked, y = (torch.from_numpy(found[f"arr_{index}"]) for index in range(2))
    expected_picked, expected_y = whole(*inputs)
    assert torch.equal(picked, expected_picked)
    torch.testing.assert_close(y, expected_y, rtol=2e-3, atol=2e-3)
    assert len(y.unique()) > 20

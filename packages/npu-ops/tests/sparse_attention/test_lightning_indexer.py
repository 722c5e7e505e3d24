"""The indexer against its reference, in every layout."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_ops.sparse_attention import lightning_indexer

LAYOUTS = [("BSND", "BSND"), ("TND", "TND"), ("BSND", "PA_BSND"), ("TND", "PA_BSND")]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
INT8 = torch.int8
op = torch.ops.npu.lightning_indexer
QUIET = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DRAWN = {
    "seed": st.integers(0, 2**31),
    "lengths": st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 7, 16, 33, 150])),
        min_size=1, max_size=3,
    ),
    "layouts": st.sampled_from(LAYOUTS),
    "heads": st.sampled_from([1, 2, 5, 7, 13]),
    "width": st.sampled_from([1, 16, 37]),
    "page_size": st.sampled_from([1, 7, 16, 48, 1500]),
    "count": st.sampled_from([1, 3, 16, 200]),
    "mode": st.sampled_from([0, 3]),
    "has_ties": st.booleans(),
    "dtype": st.sampled_from([*DTYPES, INT8]),
    "device": st.sampled_from(["cpu", "npu"]),
}  # fmt: skip
# The sizes that models have.
LARGE = DRAWN | {
    "lengths": st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5_000)), min_size=1, max_size=3
    ),
    "heads": st.integers(1, 128),
    "width": st.integers(16, 576),
    "page_size": st.integers(1, 2000),
    "count": st.integers(1, 6_000),
}
LONGEST = LARGE | {
    "lengths": st.permutations([(2, 65_536), (1, 5_000), (0, 17)]),
    "heads": st.integers(1, 16),
    "width": st.integers(16, 48),
    "count": st.sampled_from([1, 2048, 65_536, 70_000]),
}


def sequences(counts, *shape, dtype, has_ties=False):
    """Random rows; for ties -1, 0 and 1, with exact and often equal scores."""
    if has_ties:
        return [torch.randint(-1, 2, (count, *shape)).to(dtype) for count in counts]
    if dtype is INT8:
        return [torch.randint(-128, 128, (count, *shape), dtype=INT8) for count in counts]
    return [torch.randn(count, *shape).to(dtype) for count in counts]


def assert_picked(picked, scores, count):
    """Each row of `picked` has the `count` largest of its visible scores, up to near ties."""
    for row, found in zip(picked, scores, strict=True):
        visible = int((found > -torch.inf).sum())
        size = min(count, visible)
        chosen = row[:size].long()
        assert row[size:].eq(-1).all()
        assert chosen.unique().numel() == size
        assert ((chosen >= 0) & (chosen < visible)).all()
        if 0 < size < visible:
            others = torch.ones(visible, dtype=torch.bool)
            others[chosen] = False
            slack = 1e-5 * found[:visible].abs().max()
            assert found[chosen].min() >= found[:visible][others].max() - slack


@QUIET
@given(**DRAWN)
def test_any_layout_picks_what_each_sequence_alone_picks(place, to_device, **drawn):
    check(place, to_device, **drawn)


@settings(QUIET, max_examples=30)
@given(**LARGE)
def test_any_layout_of_large_sizes(place, to_device, **drawn):
    check(place, to_device, **drawn)


@settings(QUIET, max_examples=5)
@given(**LONGEST)
def test_any_layout_of_the_longest_context(place, to_device, **drawn):
    check(place, to_device, **drawn)


def check(
    place, to_device, *, seed, lengths, layouts, heads, width, page_size, count, mode, has_ties,
    dtype, device,
):  # fmt: skip
    torch.manual_seed(seed)
    queries, keys = zip(*lengths, strict=True)
    placement = place(queries, keys, layouts, page_size=page_size)
    q = sequences(queries, heads, width, dtype=dtype, has_ties=has_ties)
    w = sequences(
        queries, heads, dtype=torch.float32 if dtype is INT8 else dtype,
        has_ties=has_ties,
    )  # fmt: skip
    k = sequences(keys, width, dtype=dtype, has_ties=has_ties)
    arguments = [placement.place_queries(q), placement.place_keys(k), placement.place_queries(w)]
    options = placement.options(key_name="key") | {"sparse_count": count, "sparse_mode": mode}
    scales = [{} for _ in lengths]
    if dtype is INT8:
        spread = 0.0 if has_ties else 1.0
        q_scale = [torch.rand(count, heads) * spread + 0.125 for count in queries]
        k_scale = [torch.rand(count, 1) * spread + 0.125 for count in keys]
        options["query_dequant_scale"] = placement.place_queries(q_scale)
        options["key_dequant_scale"] = placement.place_keys(k_scale).squeeze(-1)
        scales = [
            {"query_dequant_scale": a.unsqueeze(0), "key_dequant_scale": b.unsqueeze(0)}
            for a, b in zip(q_scale, k_scale, strict=True)
        ]
    got = op(*[part.to(device) for part in arguments], **to_device(options, device)).cpu()
    assert got.dtype == torch.int32
    assert got.shape == (*arguments[0].shape[:-2], 1, count)
    parts, padding = placement.split(got)
    assert padding.eq(-1).all()
    for part, q1, k1, w1, of_int8 in zip(parts, q, k, w, scales, strict=True):
        scores = lightning_indexer.scores(
            q1.unsqueeze(0), k1[None, :, None], w1.unsqueeze(0), sparse_mode=mode, **of_int8
        )
        assert_picked(part[:, 0], scores, count)
    expected = lightning_indexer.reference(*arguments, **options)
    if has_ties:
        assert torch.equal(got, expected)
    else:
        assert_same_sets(expected, got)


def assert_same_sets(expected, got):
    """At most one near tie a row."""
    for a, b in zip(expected.flatten(0, -2), got.flatten(0, -2), strict=True):
        assert len(set(a.tolist()) - set(b.tolist())) <= 1
        assert a.eq(-1).sum() == b.eq(-1).sum()


def test_each_float16_is_read_exactly():
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    every = every[every.isfinite() & (every > 0)]
    k = every.reshape(1, -1, 1, 1)
    got = op(k.new_ones(1, 1, 1, 1), k, k.new_ones(1, 1, 1), sparse_count=1000)
    expected = every.float().topk(1000).indices.sort().values
    assert torch.equal(got.flatten().long(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_context_is_cut_to_the_largest(dtype):
    torch.manual_seed(3)
    q, k, w = torch.randn(1, 2, 9, 24), torch.randn(1, 20_011, 1, 24), torch.randn(1, 2, 9)
    q, k, w = q.to(dtype), k.to(dtype), w.to(dtype)
    got = op(q, k, w, sparse_count=300)
    assert_picked(got[0, :, 0], lightning_indexer.scores(q, k, w), 300)


def test_longest_context_over_pages_in_random_order(place):
    torch.manual_seed(5)
    placement = place((2, 1), (65_536, 5_000), ("TND", "PA_BSND"), page_size=1024)
    q = sequences((2, 1), 3, 16, dtype=torch.bfloat16)
    w = sequences((2, 1), 3, dtype=torch.bfloat16)
    k = sequences((65_536, 5_000), 16, dtype=torch.bfloat16)
    arguments = placement.place_queries(q), placement.place_keys(k), placement.place_queries(w)
    parts, _ = placement.split(op(*arguments, **placement.options(key_name="key")))
    for part, q1, k1, w1 in zip(parts, q, k, w, strict=True):
        scores = lightning_indexer.scores(q1.unsqueeze(0), k1[None, :, None], w1.unsqueeze(0))
        assert_picked(part[:, 0], scores, 2048)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_valid_positions_stand_first_and_rise(device):
    q, k, w = torch.randn(1, 4, 2, 8), torch.randn(1, 4, 1, 8), torch.randn(1, 4, 2)
    got = op(q.to(device), k.to(device), w.to(device), sparse_count=3).cpu()
    assert got[0, :3, 0].tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]


def test_of_equal_scores_the_earlier_positions_are_taken():
    q, k, w = torch.ones(1, 1, 2, 4), torch.ones(1, 9_000, 1, 4), torch.ones(1, 1, 2)
    k[0, 5] = 2
    k[0, 7] = -1
    assert op(q, k, w, sparse_count=8).tolist() == [[[[0, 1, 2, 3, 4, 5, 6, 8]]]]


def test_widest_rows_of_int8_are_summed_exactly():
    q = torch.full((1, 1, 1, 131_071), -128, dtype=torch.int8)
    k = q.expand(1, 18, 1, 131_071).clone()
    k[0, :17, 0, -1] = torch.arange(-127, -110)  # the last one alone has the largest product
    scales = {"query_dequant_scale": torch.ones(1, 1, 1), "key_dequant_scale": torch.ones(1, 18, 1)}
    assert op(q, k, torch.ones(1, 1, 1), sparse_count=1, **scales).tolist() == [[[[17]]]]


def test_negative_zero_equals_zero():
    q, k, w = -torch.ones(1, 1, 1, 1), torch.ones(1, 4, 1, 1), torch.tensor([[[1.0]]])
    w = -w  # relu gives 0, its product -0, but for the key below
    k[0, 2] = -1  # -1 * relu(1): the least
    assert op(q, k, w, sparse_count=3).tolist() == [[[[0, 1, 3]]]]


def test_visible_nan_is_the_largest():
    q, k, w = torch.ones(1, 1, 3, 4), torch.arange(20.0)[None, :, None, None], torch.ones(1, 1, 3)
    k = k.expand(1, 20, 1, 4).clone()
    k[0, 4] = torch.nan
    assert op(q, k, w, sparse_count=2).tolist() == [[[[4, 19]]]]


def test_weights_may_be_float32_beside_bfloat16():
    torch.manual_seed(0)
    q, k = torch.randn(1, 3, 5, 16).bfloat16(), torch.randn(1, 90, 1, 16).bfloat16()
    w = torch.randn(1, 3, 5)
    assert_picked(op(q, k, w, sparse_count=8)[0, :, 0], lightning_indexer.scores(q, k, w), 8)


def test_strided_cache_is_read_where_it_lies():
    torch.manual_seed(1)
    wide = torch.randn(2, 50, 1, 40)
    q, w = torch.randn(2, 1, 6, 16), torch.randn(2, 1, 6)
    for view in (wide[..., 24:], wide[..., 1:33:2], wide.transpose(0, 1)[:2, :2, :, :16]):
        assert torch.equal(op(q, view, w, sparse_count=1), op(q, view.clone(), w, sparse_count=1))


def test_scores_are_differentiable_where_the_op_is_not():
    q, k, w = torch.randn(1, 2, 3, 4), torch.randn(1, 5, 1, 4), torch.randn(1, 2, 3)
    assert not op(q.requires_grad_(), k, w).requires_grad
    arguments = [part.detach().double().requires_grad_() for part in (q, k, w)]
    assert torch.autograd.gradcheck(
        lambda *a: lightning_indexer.scores(*a, sparse_mode=0), arguments
    )


def test_result_does_not_depend_on_the_number_of_threads():
    torch.manual_seed(2)
    q, k, w = torch.randn(1, 40, 4, 32), torch.randn(1, 3_000, 1, 32), torch.randn(1, 40, 4)
    before, many = torch.get_num_threads(), op(q, k, w, sparse_count=50)
    try:
        torch.set_num_threads(1)
        assert torch.equal(op(q, k, w, sparse_count=50), many)
    finally:
        torch.set_num_threads(before)


def test_products_of_int8_are_exact_at_their_ends():
    width = 577  # odd, and the most that models have
    q = torch.full((1, 1, 3, width), -128, dtype=INT8)
    k = torch.randint(-128, -126, (1, 40, 1, width), dtype=INT8)
    q_scale, k_scale = torch.tensor([[[1.0, 0.5, 0.0]]]), torch.ones(1, 40, 1)
    w = torch.tensor([[[1.0, -1.0, 3.0]]])
    got = op(
        q, k, w, sparse_count=5, query_dequant_scale=q_scale, key_dequant_scale=k_scale
    )  # fmt: skip
    exact = (q[0, 0, 0].long() * k[0, :, 0].long()).sum(-1)
    best = sorted(range(40), key=lambda at: (-int(exact[at]), at))[:5]
    assert got[0, 0, 0].tolist() == sorted(best)

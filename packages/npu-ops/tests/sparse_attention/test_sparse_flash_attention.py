"""Sparse attention against its reference, in every layout, and its gradients."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_ops.sparse_attention import sparse_flash_attention

LAYOUTS = [("BSND", "BSND"), ("TND", "TND"), ("BSND", "PA_BSND"), ("TND", "PA_BSND")]
op = torch.ops.npu.sparse_flash_attention
QUIET = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

DRAWN = {
    "seed": st.integers(0, 2**31),
    "lengths": st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 7, 16, 33, 150])),
        min_size=1, max_size=3,
    ),
    "layouts": st.sampled_from(LAYOUTS),
    "heads": st.sampled_from([1, 3, 6, 16, 19]),
    "widths": st.sampled_from([(1, 3, 0), (16, 16, 8), (37, 50, 5), (64, 64, 16)]),
    "page_size": st.sampled_from([16, 48]),
    "count": st.sampled_from([1, 5, 16, 70]),
    "block_size": st.sampled_from([1, 1, 3, 16]),
    "mode": st.sampled_from([0, 3]),
    "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
    "device": st.sampled_from(["cpu", "npu"]),
}  # fmt: skip
# The sizes that models have.
LARGE = DRAWN | {
    "lengths": st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5_000)), min_size=1, max_size=3
    ),
    "heads": st.integers(1, 128),
    "widths": st.tuples(st.integers(16, 576), st.integers(16, 512), st.sampled_from([0, 16, 64])),
    "page_size": st.integers(1, 64).map(lambda count: 16 * count),
    "count": st.integers(1, 600),
}
LONGEST = LARGE | {
    "lengths": st.permutations([(2, 65_536), (1, 5_000), (0, 17)]),
    "heads": st.integers(1, 32),
    "widths": st.sampled_from([(16, 24, 0), (37, 50, 5)]),
    "count": st.sampled_from([1, 2048]),
}


def sequences(counts, *shape, dtype):
    return [torch.randn(count, *shape).to(dtype) for count in counts]


def draw_indices(queries, keys, count, block_size):
    """Blocks in random order, -1 among them; the first may exceed the query's visible keys."""
    blocks = -(-keys // block_size)
    rows = torch.randint(-1, max(blocks, 1), (queries, 1, count), dtype=torch.int32)
    return rows if blocks else torch.full_like(rows, -1)


def assert_near(got, expected, dtype):
    """1e-5 in float32; 5e-3 in bfloat16 for all but 1 % or one, and nowhere more than roundings."""
    if dtype is torch.float32:
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        return
    got, expected = got.float(), expected.float()
    near = torch.isclose(got, expected, rtol=5e-3, atol=1e-4)
    assert int((~near).sum()) <= max(1, near.numel() // 100)
    torch.testing.assert_close(got, expected, rtol=1.6e-2, atol=1e-3)


@QUIET
@given(**DRAWN)
def test_any_layout_gives_what_each_sequence_alone_gives(place, to_device, **drawn):
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
    place, to_device, *, seed, lengths, layouts, heads, widths, page_size, count, block_size, mode,
    dtype, device,
):  # fmt: skip
    torch.manual_seed(seed)
    queries, keys = zip(*lengths, strict=True)
    placement = place(queries, keys, layouts, page_size=page_size)
    width, value_width, rope = widths
    scale = min(0.3, width**-0.5)
    q, k = sequences(queries, heads, width, dtype=dtype), sequences(keys, width, dtype=dtype)
    v = sequences(keys, value_width, dtype=dtype)
    indices = [draw_indices(a, b, count, block_size) for a, b in lengths]
    q_rope = sequences(queries, heads, rope, dtype=dtype) if rope else None
    k_rope = sequences(keys, rope, dtype=dtype) if rope else None
    padded = placement.place_queries([part.float() for part in indices])
    arguments = [
        placement.place_queries(q), placement.place_keys(k), placement.place_keys(v),
        padded.nan_to_num(9e8, 9e8, -9e8).int(),
    ]  # fmt: skip
    options = placement.options(key_name="kv") | {"sparse_mode": mode}
    if rope:
        options["query_rope"] = placement.place_queries(q_rope)
        options["key_rope"] = placement.place_keys(k_rope)
    moved = [part.to(device) for part in arguments]
    got = op(*moved, scale, block_size, **to_device(options, device)).cpu()
    assert got.dtype is dtype
    assert got.shape == (*arguments[0].shape[:-1], value_width)
    parts, padding = placement.split(got)
    assert not padding.any()
    for i, part in enumerate(parts):
        ropes = {
            "query_rope": q_rope[i].unsqueeze(0), "key_rope": k_rope[i][None, :, None],
        } if rope else {}  # fmt: skip
        expected = sparse_flash_attention.reference(
            q[i].unsqueeze(0), k[i][None, :, None], v[i][None, :, None], indices[i].unsqueeze(0),
            scale, block_size, sparse_mode=mode, **ropes,
        )  # fmt: skip
        assert_near(part, expected[0], dtype)
    placed = sparse_flash_attention.reference(*arguments, scale, block_size, **options)
    assert_near(got, placed, dtype)


def published(dtype, length=2, keys=700, count=300, heads=128):
    """The sizes of the models, but for the context."""
    q = torch.randn(1, length, heads, 512).to(dtype)
    cache = torch.randn(1, keys, 1, 576).to(dtype)
    rows = [torch.randperm(keys - length + 1)[:count] for _ in range(length)]
    indices = torch.stack(rows).to(torch.int32).reshape(1, length, 1, count)
    rope = {"query_rope": torch.randn(1, length, heads, 64).to(dtype), "key_rope": cache[..., 512:]}
    return (q, cache[..., :512], cache[..., :512], indices, 576**-0.5, 1), rope


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_published_sizes_over_one_latent_cache(dtype):
    torch.manual_seed(0)
    arguments, rope = published(dtype)
    expected = sparse_flash_attention.reference(*arguments, **rope)
    assert_near(op(*arguments, **rope), expected, dtype)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_selecting_all_is_dense_attention(device):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 7, 5, 24), torch.randn(2, 45, 1, 24), torch.randn(2, 45, 1, 40)
    indices = torch.arange(45, dtype=torch.int32).expand(2, 7, 1, 45)
    got = op(*[part.to(device) for part in (q, k, v, indices)], 0.2, 1).cpu()
    mask = torch.ones(7, 45, dtype=torch.bool).tril(45 - 7)
    dense = torch.nn.functional.scaled_dot_product_attention(
        *[part.transpose(1, 2) for part in (q, k, v)], mask, scale=0.2, enable_gqa=True
    )
    torch.testing.assert_close(got, dense.transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_rows_without_a_valid_key_are_zero():
    q, k = torch.randn(1, 3, 2, 8), torch.randn(1, 3, 1, 8)
    indices = torch.tensor([2, 1, -1], dtype=torch.int32).reshape(1, 3, 1, 1)
    got = op(q, k, k, indices, 1.0, 1)  # the first sees position 0 alone, the last selects none
    assert not got[0, 0].any()
    assert not got[0, 2].any()
    torch.testing.assert_close(got[0, 1], k[0, 1].expand(2, 8))


def test_position_that_is_selected_twice_counts_twice():
    q, v = torch.zeros(1, 1, 1, 4), torch.tensor([0.0, 3.0]).reshape(1, 2, 1, 1)
    k = torch.randn(1, 2, 1, 4)
    indices = torch.tensor([0, 1, 1], dtype=torch.int32).reshape(1, 1, 1, 3)
    assert op(q, k, v, indices, 1.0, 1).item() == pytest.approx(2.0)


def test_selected_nan_is_seen_by_its_query_alone():
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 40, 1, 8)
    v = torch.randn(1, 40, 1, 6)
    k[0, 5] = torch.nan
    indices = torch.tensor([[5, 6], [7, 8]], dtype=torch.int32).reshape(1, 2, 1, 2)
    got = op(q, k, v, indices, 1.0, 1)
    assert got[0, 0].isnan().all()
    assert got[0, 1].isfinite().all()


@pytest.mark.parametrize("scale", [1e4, -1e4, 0.0])
def test_large_scores_do_not_overflow(scale):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 3, 8), torch.randn(1, 100, 1, 8), torch.randn(1, 100, 1, 6)
    indices = torch.arange(100, dtype=torch.int32).expand(1, 2, 1, 100)
    expected = sparse_flash_attention.reference(q, k, v, indices, scale, 1)
    torch.testing.assert_close(op(q, k, v, indices, scale, 1), expected, rtol=1e-3, atol=1e-4)


def test_result_does_not_depend_on_the_number_of_threads():
    torch.manual_seed(0)
    arguments, rope = published(torch.float32, length=1)
    before, many = torch.get_num_threads(), op(*arguments, **rope)
    try:
        torch.set_num_threads(1)
        assert torch.equal(op(*arguments, **rope), many)
    finally:
        torch.set_num_threads(before)


def gradient_case(place, layouts, dtype):
    torch.manual_seed(4)
    placement = place((2, 0, 3), (5, 4, 20), layouts)
    q = placement.place_queries(sequences((2, 0, 3), 3, 4, dtype=dtype)).nan_to_num(1, 1, 1)
    k = placement.place_keys(sequences((5, 4, 20), 4, dtype=dtype)).nan_to_num(1, 1, 1)
    v = placement.place_keys(sequences((5, 4, 20), 6, dtype=dtype)).nan_to_num(1, 1, 1)
    q_rope = torch.randn(*q.shape[:-1], 2, dtype=dtype)
    k_rope = torch.randn(*k.shape[:-1], 2, dtype=dtype)
    drawn = [draw_indices(a, b, 4, 2).to(dtype) for a, b in ((2, 5), (0, 4), (3, 20))]
    indices = placement.place_queries(drawn).nan_to_num(-1, -1, -1).int()
    indices.view(-1, 4)[0] = -1  # a row without any key
    return (q, k, v, q_rope, k_rope), indices, placement.options(key_name="kv")


def calls(function, indices, options):
    def call(q, k, v, q_rope, k_rope):
        return function(q, k, v, indices, 0.7, 2, query_rope=q_rope, key_rope=k_rope, **options)

    return call


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_reference_passes_gradcheck(place, layouts):
    tensors, indices, options = gradient_case(place, layouts, torch.float64)
    tensors = [part.requires_grad_() for part in tensors]
    call = calls(sparse_flash_attention.reference, indices, options)
    assert torch.autograd.gradcheck(call, tensors)


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_written_out_gradients_are_those_of_the_reference(place, layouts):
    tensors, indices, options = gradient_case(place, layouts, torch.float64)
    leaves = [part.clone().requires_grad_() for part in tensors]
    y = calls(sparse_flash_attention.reference, indices, options)(*leaves)
    grad = torch.randn_like(y)
    expected = torch.autograd.grad(y, leaves, grad)
    q, k, v, q_rope, k_rope = tensors
    arguments = {
        "query": q, "key": k, "value": v, "sparse_indices": indices, "scale_value": 0.7,
        "sparse_block_size": 2, "query_rope": q_rope, "key_rope": k_rope, "sparse_mode": 3,
    }  # fmt: skip
    got = sparse_flash_attention.gradients(grad, arguments | options)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_op_has_the_gradients_of_the_reference(place, to_device, layouts, device):
    tensors, indices, options = gradient_case(place, layouts, torch.float32)
    leaves = [part.clone().requires_grad_() for part in tensors]
    y = calls(sparse_flash_attention.reference, indices, options)(*leaves)
    grad = torch.randn_like(y)
    expected = torch.autograd.grad(y, leaves, grad)
    there = [part.to(device).requires_grad_() for part in tensors]
    found = calls(op, indices.to(device), to_device(options, device))(*there)
    got = torch.autograd.grad(found, there, grad.to(device))
    torch.testing.assert_close([part.cpu() for part in got], list(expected))


def test_gradient_of_one_argument_alone():
    arguments, rope = published(torch.float32, keys=20, count=7, heads=2)
    key_rope = rope["key_rope"].clone().requires_grad_()
    y = op(*arguments, query_rope=rope["query_rope"], key_rope=key_rope)
    (got,) = torch.autograd.grad(y.square().sum(), key_rope)
    z = sparse_flash_attention.reference(
        *arguments, query_rope=rope["query_rope"], key_rope=key_rope
    )
    (expected,) = torch.autograd.grad(z.square().sum(), key_rope)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)

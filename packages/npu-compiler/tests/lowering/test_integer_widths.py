"""int8, uint8 and int16 tensors in a program: cast, moved and compared as in torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import npu_compiler
from npu_compiler import GraphBuilder
from npu_compiler.errors import IndexRangeError, LoweringError
from npu_compiler.lowering.capability import refusal
from npu_compiler.lowering.integer_widths import (
    LARGEST_NUMBER,
    WIDE,
    bits_seen,
    integer_widths,
    lone_numbers,
)
from npu_compiler.options import CompilerConfig

NARROW = [torch.uint8, torch.int8, torch.int16]
INTEGERS = [*NARROW, torch.int32, torch.int64]


def every(dtype):
    """All values of a small dtype, or the ends of each smaller one within a large one."""
    if dtype is torch.bool:
        return torch.tensor([[False, True]] * 8)
    if dtype in (torch.uint8, torch.int8):
        return torch.arange(256, dtype=torch.int32).to(dtype).reshape(16, 16)
    ends = [0, 1, 127, 128, 129, 255, 256, 32767]
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        ends += [32768, 65535, 65536, 1 << 24, (1 << 24) + 1, (1 << 31) - 1]
        values = [x for end in ends for x in (end, -end, -end - 1) if info.min <= x <= info.max]
    else:
        values = [x for end in ends for x in (end + 0.75, -end - 0.75, end, -end)]
        values = [*values, 65504.0, 0.5, -0.5, -0.0, 1.5]
    return torch.tensor(values[: len(values) // 2 * 2], dtype=dtype).reshape(2, -1)


DTYPES = [*INTEGERS, torch.float32, torch.bool]


def cast(source, target):
    """A function of values and of a one, by which a cast to a narrow dtype is of no input."""

    def function(x, one):
        computed = (x.to(torch.float32) * one).to(source) if source in NARROW else x
        cast = computed.to(target)
        return cast, torch.cat([cast, cast]).t(), cast.to(torch.float32) * one

    return function


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts_of_extreme_values_equal_eager(lowers, source, dynamic):
    casts = {str(target): cast(source, target) for target in DTYPES if source is not target}
    lowers(casts, every(source), torch.tensor(1.0), dynamic=dynamic, tolerance=0.0)


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16], ids=str)
def test_cast_from_a_half_type_equals_eager(lowers, source):
    values = torch.tensor([[0.5, -0.5, 100.75, -100.75], [127.0, -128.0, 200.0, 255.0]])
    casts = {
        str(target): lambda x, target=target: x.to(target).to(torch.float32)
        for target in (torch.uint8, torch.int8)
    }
    lowers(casts, values.to(source))


MOVES = {
    "view": lambda x: x.view(3, 8),
    "permute": lambda x: x.permute(2, 0, 1),
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "slice": lambda x: x[1:, ::2, :-1],
    "select": lambda x: x[:, 1],
    "split": lambda x: x.split([1, 2], 1),
    "unbind": lambda x: x.unbind(2),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x], -1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((1, 2), (0, 1)),
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "gather": lambda x: x.gather(2, torch.tensor([[[3], [0], [1]]] * 2)),
    "index": lambda x: x[:, torch.tensor([0, 2])],
    "index of several": lambda x: x[torch.tensor([0, 1]), torch.tensor([2, 0])],
    "pad": lambda x: F.pad(x, (1, 2), value=7),
    "where": lambda x: torch.where(x > 100, x, x.flip(2)),
    "masked_fill": lambda x: x.masked_fill(x == 0, 5),
    "less": lambda x: x < x.flip(2),
    "at least": lambda x: x >= 127,
    "unequal": lambda x: x != -128 if x.dtype is torch.int8 else x != 128,
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_values_are_moved_and_compared_as_in_eager(lowers, dtype):
    info = torch.iinfo(dtype)
    values = torch.arange(24) * 11 - 120
    values[:2], values[2:4] = info.min, info.max

    def with_arithmetic(move):
        def function(x):
            moved = move(x)
            first = moved[0] if isinstance(moved, tuple) else moved
            return moved, first.to(torch.float32) * 0.5

        return function

    moves = {name: with_arithmetic(move) for name, move in MOVES.items()}
    lowers(moves, values.to(dtype).reshape(2, 3, 4))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x + 1, id="add"),
        pytest.param(lambda x: x.sum(), id="sum"),
        pytest.param(lambda x: x < 300, id="a number of no uint8"),
        pytest.param(lambda x: x < 1.5, id="a fraction"),
        pytest.param(lambda x: ~x, id="not"),
    ],
)
def test_arithmetic_is_refused(function):
    graph = torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(
        torch.ones(4, dtype=torch.uint8)
    ).graph
    reasons = [refusal(n, CompilerConfig()) for n in graph.nodes if n.op == "call_function"]
    assert any(reason and "would not wrap around" in reason for reason in reasons)


def test_image_of_bytes_is_one_program_with_its_model(compiled, close):
    layer = torch.nn.Conv2d(3, 4, 3).eval()

    def model(image):
        return layer(image.permute(0, 3, 1, 2).to(torch.float32) / 255)

    image = torch.arange(2 * 8 * 8 * 3).reshape(2, 8, 8, 3).to(torch.uint8)
    run = compiled(model)
    with torch.no_grad():
        close(run(image), model(image))
    assert (run.programs, run.eager_ops) == (1, [])


IDS = torch.arange(12).reshape(3, 4)
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
TABLE = torch.randn(20, 4)


def widths(function, *inputs, dynamic=False, **how):
    mode = "symbolic" if dynamic else "fake"
    return integer_widths(make_fx(function, tracing_mode=mode)(*inputs).graph, **how)


def buckets(x):
    """As relative positions of T5."""
    far = 16 + (torch.log(x.float() / 16) / 2.07 * 16).to(torch.int64)
    return torch.where(x < 16, x, torch.min(far, torch.full_like(far, 31)))


PROVED = {
    "range": lambda x: x + torch.arange(4) * 3 % 5,
    "largest place": lambda x: x.argmax(-1) * 2 + 1,
    "comparison": lambda x: ((x > 0).long().sum(1) == 12).float(),
    "mask": lambda x: (x > 0).long().cumsum(1) - 1,
    "clamped float": lambda x: (x.clamp(0, 1) * 255).long() + 1,
    "int32 of floats": lambda x: (x * 255).int(),
    "written": lambda x: torch.arange(4).select_scatter(torch.full((), 7), 0, 1) + 1,
    "places of maxima": lambda x: F.max_pool2d(x[None], 2, return_indices=True)[1] + 1,
    "squares": lambda x: ((x > 0).long() ** 2 - ~x.argmin(1)[:, None]).relu().fmod(5),
    "buckets": lambda x: buckets(torch.arange(100)) * x[0, 0],
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROVED)
def test_integers_that_follow_from_shapes_and_floats_are_proved(name, dynamic):
    found = widths(PROVED[name], X, dynamic=dynamic)
    assert (found.refused, dict(found.bits)) == (frozenset(), {})


def test_indices_are_left_to_their_own_check():
    found = widths(lambda ids, table: F.embedding(ids, table) + table[ids], IDS, TABLE)
    assert dict(found.bits) == {}


@pytest.mark.parametrize(
    "function, bits",
    [
        pytest.param(lambda ids: ids.t().contiguous(), 31, id="moved"),
        pytest.param(lambda ids: ids.split(2, 1), 31, id="moved in parts"),
        pytest.param(lambda ids: ids.to(torch.bool), 31, id="cast"),
        pytest.param(lambda ids: (ids == 3).float(), 24, id="compared"),
        pytest.param(lambda ids: (ids > 0).float(), 31, id="compared with 0"),
        pytest.param(lambda ids: torch.logical_not(ids), 31, id="true or false"),
        pytest.param(lambda ids: torch.sign(ids), 31, id="sign"),
        pytest.param(lambda ids: ids + 1, 23, id="added to"),
        pytest.param(lambda ids: ids.sum(), 20, id="summed"),
        pytest.param(lambda ids: ids.int() // 3, 23, id="divided"),
        pytest.param(lambda ids: ids * 1000, 12, id="multiplied"),
        pytest.param(lambda ids: ids.split(2, 1)[0] * 1000, 12, id="split"),
    ],
)
def test_input_is_asked_for_as_little_as_proves_it(function, bits):
    found = widths(function, IDS)
    assert (found.refused, dict(found.bits)) == (frozenset(), {"ids_1": bits})


def test_positions_of_a_mask_are_proved_for_masks_of_any_length():
    found = widths(lambda mask: mask.cumsum(-1) - 1, IDS, dynamic=True, seen={"mask_1": 1})
    assert (found.refused, dict(found.bits)) == (frozenset(), {"mask_1": 1})


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda ids: ids * 7919 * 1000003 * 31, id="product"),
        pytest.param(lambda ids: ids + (1 << 40), id="constant"),
        pytest.param(lambda ids: torch.arange(1 << 40, (1 << 40) + 4) + ids, id="range"),
        pytest.param(lambda ids: (ids.sin() * 1e20).long() + ids, id="float"),
    ],
)
def test_what_no_input_could_prove_is_left_out(function):
    assert widths(function, IDS).refused


def test_what_follows_small_from_a_wide_value_is_left_out_no_further():
    found = widths(lambda ids: (ids + (1 << 40)) % 1000 + 1, IDS)
    assert found.refused == {"add", "remainder"}


def test_values_of_the_first_call_are_not_asked_to_be_smaller():
    assert widths(lambda ids: ids * 1000, IDS, seen={"ids_1": 20}).refused == {"mul"}
    assert widths(lambda ids: ids.t(), IDS, seen={"ids_1": 40}).refused == {"t"}


def test_bits_are_those_of_the_largest_and_the_least():
    graph = make_fx(lambda a, b, c: (a, b, c))(IDS, IDS, X).graph
    given = [n for n in graph.nodes if n.op == "placeholder"]
    values = [torch.tensor([0, 1]), torch.tensor([-(1 << 40), 3]), X]
    assert bits_seen(given, values) == {"a_1": 1, "b_1": 40}


def test_a_value_that_does_not_fit_runs_eagerly_in_a_first_call_and_in_a_later_one(compiled, close):
    def function(ids, x):
        return (ids + 1) * x

    run = compiled(function)
    with torch.no_grad():
        close(run(IDS, X), function(IDS, X))
        assert (run.programs, run.eager_ops) == (1, [])
        close(run(IDS + (1 << 40), X), function(IDS + (1 << 40), X))
    assert run.eager_ops[0] == "aten.add.Tensor"
    torch._dynamo.reset()
    again = compiled(lambda ids, x: function(ids, x) * 1.0)
    with torch.no_grad():
        close(again(IDS + (1 << 40), X), function(IDS + (1 << 40), X))
    assert again.eager_ops[0] == "aten.add.Tensor"
    assert again.records[-1].eager[0].reason == WIDE


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_parts_of_large_values_are_moved_in_a_program(compiled, close, dtype):
    def function(ids, x):
        return ids.split(2, 1)[0], x.argmin(1)

    run, large = compiled(function), (IDS - 6).to(dtype) * (1 << 28)
    with torch.no_grad():
        close(run(large, X), function(large, X))
    assert (run.programs, run.eager_ops) == (1, [])


def test_parts_that_are_too_large_run_eagerly_together_with_their_call(compiled, close):
    def function(ids, x):
        return ids.sort(1).values, x.argmin(1)

    run, large = compiled(function), IDS * (1 << 26)
    with torch.no_grad():
        close(run(large, X), function(large, X))
    assert (run.programs, {*run.eager_ops}) == (1, {"aten.sort.default"})


def test_hash_of_ids_runs_eagerly_beside_its_program(compiled, close):
    def function(ids, x):
        return F.embedding(ids * 7919 * 1000003 % 20, TABLE)[:, 0] * x

    run = compiled(function)
    with torch.no_grad():
        close(run(IDS, X), function(IDS, X))
    assert (run.programs, {*run.eager_ops}) == (1, {"aten.mul.Tensor", "aten.remainder.Scalar"})


def test_check_can_be_left_out(compiled):
    run = compiled(lambda ids, x: (ids + 1) * x, options={"check_indices": False, "verify": "off"})
    with torch.no_grad():
        run(IDS, X)
        run(IDS + (1 << 40), X)


class Counts(torch.nn.Module):
    def forward(self, ids, x):
        return (ids % 7) * x


def test_exported_model_looks_at_its_integers(tmp_path, close):
    path = npu_compiler.export(Counts(), (IDS, X), tmp_path / "model")
    close(npu_compiler.load(path)(IDS, X), Counts()(IDS, X))
    for loaded in (npu_compiler.load(path), npu_compiler.load(path, device="CPU")):
        wide = (IDS + (1 << 30)).numpy(), X.numpy()
        with pytest.raises(IndexRangeError, match=r"ids.*narrow integers.*got 10737418"):
            loaded(*wide)


def test_graph_looks_at_its_integers_and_refuses_a_hash():
    graph = GraphBuilder()
    graph.parameter((3, 4), "int64") // 3
    with pytest.raises(IndexRangeError, match="narrow integers"):
        graph.run(IDS + (1 << 40))
    other = GraphBuilder()
    other.parameter((3, 4), "int64") * 1000003 * 1000003
    with pytest.raises(LoweringError, match=WIDE):
        other.compile()


def test_integers_that_grow_are_compiled_for_and_right() -> None:
    def function(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + (ids // 3 % 1000).float()

    fast = torch.compile(function, backend="npu")
    x = torch.randn(4)
    with torch.no_grad():
        for large in (100, 1 << 22, (1 << 30) + 7, 1 << 40, 5):
            ids = torch.tensor([1, 2, large - 1, large])
            torch.testing.assert_close(fast(x, ids), function(x, ids))


def test_a_call_that_reads_a_shape_asks_nothing_of_the_values() -> None:
    def function(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + torch.ones_like(ids)

    fast = torch.compile(function, backend="npu")
    x, ids = torch.randn(4), torch.tensor([0, -(2**31), 2**62, 1])
    with torch.no_grad():
        torch.testing.assert_close(fast(x, ids), function(x, ids))


EXTREME = torch.tensor([2**62, -(2**63), 0, 2**32])


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, wide, one: torch.logical_xor(x, wide | one), id="truth"),
        pytest.param(lambda x, wide, one: x * (wide | one).view(2, 2).view(4).ne(0), id="moved"),
        pytest.param(lambda x, wide, one: torch.sign((wide | one) // 3) + x, id="computed"),
    ],
)
def test_what_reads_integers_of_an_eager_call_on_wide_ones_runs_eagerly_too(function):
    one = torch.tensor([0, 1, 0, 0]).to(torch.int8)
    inputs = (torch.tensor([0.0, 1.0, 0.0, 2.0]), EXTREME, one)
    torch._dynamo.reset()
    found = torch.compile(function, backend="npu")(*inputs)
    torch.testing.assert_close(found, function(*inputs), rtol=0, atol=0)


def test_eager_calls_on_small_integers_leave_what_reads_them_in_the_program():
    function = make_fx(lambda wide, one: torch.logical_not(wide | one))(EXTREME, IDS[0]).graph
    (either,) = (node for node in function.nodes if node.target is torch.ops.aten.bitwise_or.Tensor)
    small, wide = (
        integer_widths(function, eager=[either], seen={"wide_1": bits, "one_1": 8})
        for bits in (8, 63)
    )
    assert (small.refused, small.bits["bitwise_or"]) == (frozenset(), 31)
    assert wide.refused == {"logical_not"}


@pytest.mark.parametrize("op, dim", [("prod", [1]), ("prod", []), ("cumprod", [1])])
def test_what_reads_a_product_of_narrow_integers_runs_eagerly(op, dim):
    def function(x, scale):
        return getattr(x, op)(*dim).flatten(), scale.sinc()

    inputs = (torch.full((2, 4), 2**14, dtype=torch.int16), torch.randn(3))
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(function, backend="npu")(*inputs)
    torch.testing.assert_close(found, function(*inputs))


@pytest.mark.parametrize("op", ["floor_divide", "remainder", "fmod"])
def test_integers_are_divided_within_23_bits(op):
    def asked(number):
        def function(x):
            return getattr(torch, op)(x.clamp(0, number), 385)

        widths = integer_widths(make_fx(function)(torch.arange(4)).graph)
        return widths.refused, set(widths.bits.values())

    assert asked((1 << 23) - 1) == (frozenset(), {24})
    assert asked(1 << 23) == (frozenset(), {23})


def test_number_of_any_size_is_computed_with(compiled):
    def function(x, k):
        return x + k, x * 2 + k * 3, torch.full((2,), k), x // max(k, 1)

    fast = compiled(function, options={"target": "openvino"})
    x = torch.tensor([1, -2, 3])
    with torch.no_grad():
        for k in (2, 3, 5, LARGEST_NUMBER + 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**40, 2**62, 7):
            for result, expected in zip(fast(x, k), function(x, k), strict=True):
                assert torch.equal(result, expected), k


def test_sizes_are_no_lone_numbers():
    graph = make_fx(lambda x: x * x.shape[0], tracing_mode="symbolic")(torch.ones(3)).graph
    assert lone_numbers(graph.find_nodes(op="placeholder")) == ()

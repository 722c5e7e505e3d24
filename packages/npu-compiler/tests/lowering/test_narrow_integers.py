"""int8, uint8 and int16 tensors in a program: cast, moved and compared as in torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.lowering.capability import refusal
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

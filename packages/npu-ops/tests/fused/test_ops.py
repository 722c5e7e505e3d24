"""Every op of torch.ops.npu against its reference: dtypes, layouts, gradients, fakes, versions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from npu_ops import fused

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Largest difference by the largest value of the reference.
TOLERANCE = {
    torch.float32: 2e-6,
    torch.bfloat16: 1.6e-2,
    torch.float16: 2e-3,
    torch.float64: 1e-13,
}


@dataclass(frozen=True)
class Case:
    """One way to call an op.

    make(dtype) gives positional arguments on the CPU; `differentiable` are the ones to check
    gradients for.
    """

    op: str
    reference: Callable[..., Any]
    make: Callable[[torch.dtype], tuple[Any, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    differentiable: tuple[int, ...] = ()
    layout: str = "contiguous"

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.op}({options})-{self.layout}"

    @property
    def call(self) -> Callable[..., Any]:
        return getattr(torch.ops.npu, self.op)


def rand(*shape):
    return lambda dtype: torch.randn(shape).to(dtype)


def positive(*shape):
    return lambda dtype: (torch.rand(*shape) + 0.5).to(dtype)


def strided(*shape):
    """Every second element of the last axis of a transposed tensor."""

    def make(dtype):
        wide = torch.randn(*shape[:-2], shape[-1] * 2, shape[-2]).to(dtype)
        return wide.mT[..., ::2]

    return make


def half(index, *shape):
    """One half of the last axis of a tensor twice as wide."""
    return lambda dtype: torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype).chunk(2, -1)[index]


def integers(dtype, low, high, *shape):
    return lambda _: torch.randint(low, high, shape, dtype=torch.int32).to(dtype)


def nibbles(rows, columns):
    return lambda _: fused.quantized_linear.pack_int4(torch.randint(0, 16, (rows, columns)))


def all_of(*parts):
    def make(dtype):
        return tuple(part(dtype) if callable(part) else part for part in parts)

    return make


def cases(op, rows, *, differentiable=(), reference=None):
    module = getattr(fused, op)
    return [
        Case(op, reference or module.reference, all_of(*parts), options, differentiable, layout)
        for layout, parts, options in rows
    ]


LINEAR = [
    ("contiguous", (rand(3, 5, 37), rand(11, 37), rand(11)), {}),
    ("no bias", (rand(4, 16), rand(8, 16), None), {}),
    ("strided", (strided(3, 5, 37), strided(11, 37), rand(11)), {}),
    ("empty", (rand(0, 37), rand(11, 37), rand(11)), {}),
    ("one row", (rand(37), rand(11, 37), rand(11)), {}),
]
QUANTIZED = [
    ("int8", (rand(2, 3, 64), integers(torch.int8, -128, 128, 7, 64), positive(7, 1)), {}),
    (
        "int8 groups, zero points, bias",
        (rand(3, 64), integers(torch.int8, -128, 128, 7, 64), positive(7, 4),
         integers(torch.int8, -9, 9, 7, 4), rand(7)),
        {},
    ),
    (
        "uint8, odd sizes",
        (rand(5, 39), integers(torch.uint8, 0, 256, 6, 39), positive(6, 3),
         integers(torch.uint8, 0, 256, 6, 3)),
        {},
    ),
    ("uint8 without zero points", (rand(2, 32), integers(torch.uint8, 0, 256, 3, 32),
                                   positive(3, 1)), {}),
    ("many rows", (rand(40, 64), integers(torch.int8, -128, 128, 7, 64), positive(7, 2), None,
                   rand(7)), {}),
    ("strided", (strided(3, 64), integers(torch.int8, -128, 128, 7, 64), positive(7, 2)), {}),
    ("empty", (rand(0, 64), integers(torch.int8, -128, 128, 7, 64), positive(7, 2)), {}),
    ("one row", (rand(64), nibbles(7, 64), positive(7, 4)), {"bits": 4}),
    ("int4", (rand(5, 128), nibbles(9, 128), positive(9, 4),
              integers(torch.uint8, 0, 16, 9, 4), rand(9)), {"bits": 4}),
    ("int4, small groups", (rand(5, 30), nibbles(9, 30), positive(9, 5)), {"bits": 4}),
    ("int4, many rows", (rand(40, 128), nibbles(9, 128), positive(9, 4),
                         integers(torch.uint8, 0, 16, 9, 4)), {"bits": 4}),
]  # fmt: skip
NORMS = (rand(6), positive(6), rand(6), rand(6))
CASES = [
    *cases("linear_relu", LINEAR, differentiable=(0, 1, 2)),
    *cases("linear_gelu", LINEAR, differentiable=(0, 1, 2)),
    *cases(
        "linear_gelu", [(*LINEAR[0][:2], {"approximate": "tanh"})], differentiable=(0, 1, 2)
    ),
    *cases(
        "addmm_relu",
        [
            ("bias", (rand(7), rand(5, 9), rand(9, 7)), {}),
            ("matrix", (rand(5, 7), rand(5, 9), rand(9, 7)), {"beta": 0.5, "alpha": 2}),
            ("column", (rand(5, 1), rand(5, 9), rand(9, 7)), {"beta": -1}),
            ("zero-dim", (rand(), rand(5, 9), rand(9, 7)), {}),
            ("strided", (rand(7), strided(5, 9), strided(9, 7)), {}),
            ("empty", (rand(7), rand(0, 9), rand(9, 7)), {}),
        ],
        differentiable=(0, 1, 2),
    ),
    *cases(
        "conv_bn_relu",
        [
            ("2d", (rand(2, 4, 9, 9), rand(6, 4, 3, 3), rand(6), *NORMS), {"padding": [1]}),
            (
                "groups",
                (rand(2, 4, 9, 8), rand(6, 2, 3, 3), None, *NORMS),
                {"stride": [2, 1], "padding": [1, 2], "dilation": [2, 1], "groups": 2},
            ),
            ("1d", (rand(2, 4, 9), rand(6, 4, 3), rand(6), *NORMS), {}),
            ("3d", (rand(1, 2, 5, 5, 5), rand(6, 2, 2, 2, 2), rand(6), *NORMS), {"eps": 1e-3}),
            ("without affine", (rand(2, 4, 9, 9), rand(6, 4, 1, 1), None, *NORMS[:2]), {}),
            (
                "channels last",
                (lambda dtype: rand(2, 4, 9, 9)(dtype).to(memory_format=torch.channels_last),
                 rand(6, 4, 3, 3), rand(6), *NORMS),
                {},
            ),
            ("strided", (strided(2, 4, 9, 9), strided(6, 4, 3, 3), rand(6), *NORMS), {}),
            ("empty", (rand(0, 4, 9, 9), rand(6, 4, 3, 3), rand(6), *NORMS), {}),
        ],
        differentiable=(0, 1, 2, 5, 6),
    ),
    *cases(
        "rms_norm",
        [
            ("contiguous", (rand(3, 5, 37), rand(37)), {}),
            ("wide", (rand(2, 1024), rand(1024), 1e-3), {}),
            ("matrix of a wider one", (half(1, 5, 37), rand(37)), {}),
            ("strided", (strided(3, 5, 37), rand(37)), {}),
            ("one row", (rand(8), rand(8)), {}),
            ("one column", (rand(4, 1), rand(1)), {}),
            ("empty", (rand(0, 8), rand(8)), {}),
            ("expanded", (lambda dtype: rand(1, 8)(dtype).expand(3, 8), rand(8)), {}),
        ],
        differentiable=(0, 1),
    ),
    *cases(
        "rotary_embedding",
        [
            (layout, parts, {"interleaved": interleaved})
            for interleaved in (False, True)
            for layout, parts in [
                ("contiguous", (rand(2, 3, 6, 64), rand(6, 32), rand(6, 32))),
                ("part of a head", (rand(2, 3, 6, 50), rand(2, 6, 19), rand(2, 6, 19))),
                ("broadcast table", (rand(2, 3, 6, 8), rand(1, 6, 4), rand(1, 6, 4))),
                (
                    "heads behind positions",
                    (lambda dtype: rand(2, 6, 3, 64)(dtype).transpose(1, 2), rand(6, 32),
                     rand(6, 32)),
                ),
                ("strided", (strided(2, 3, 6, 64), rand(6, 32), rand(6, 32))),
                ("one row", (rand(1, 1, 1, 64), rand(1, 32), rand(1, 32))),
                ("empty", (rand(2, 3, 0, 64), rand(0, 32), rand(0, 32))),
            ]
        ],
        differentiable=(0, 1, 2),
    ),
    *cases(
        "swiglu",
        [
            ("contiguous", (rand(3, 5, 37), rand(3, 5, 37)), {}),
            ("large", (rand(3, 5000), rand(3, 5000)), {}),
            ("halves", (half(0, 3, 5, 37), half(1, 3, 5, 37)), {}),
            ("strided", (strided(3, 5, 37), rand(3, 5, 37)), {}),
            ("zero-dim", (rand(), rand()), {}),
            ("one row", (rand(7), rand(7)), {}),
            ("empty", (rand(3, 0), rand(3, 0)), {}),
            ("expanded", (lambda dtype: rand(1, 8)(dtype).expand(3, 8), rand(3, 8)), {}),
        ],
        differentiable=(0, 1),
    ),
    *cases(
        "fused_attention",
        [
            ("contiguous", (rand(2, 4, 5, 16), rand(2, 4, 7, 16), rand(2, 4, 7, 16)), {}),
            ("grouped", (rand(2, 6, 5, 8), rand(2, 2, 5, 8), rand(2, 2, 5, 8)),
             {"is_causal": True}),
            ("last queries", (rand(2, 6, 3, 8), rand(2, 2, 9, 8), rand(2, 2, 9, 8)),
             {"is_causal": True}),
            ("one query", (rand(2, 6, 1, 8), rand(2, 2, 9, 8), rand(2, 2, 9, 8)),
             {"is_causal": True, "window": 4}),
            ("window", (rand(1, 4, 9, 8), rand(1, 2, 9, 8), rand(1, 2, 9, 8)),
             {"is_causal": True, "window": 3, "scale": 0.3}),
            ("wide window", (rand(1, 2, 5, 8), rand(1, 2, 7, 8), rand(1, 2, 7, 8)),
             {"is_causal": True, "window": 30}),
            ("heads behind positions",
             (lambda dtype: rand(2, 5, 4, 16)(dtype).transpose(1, 2),
              lambda dtype: rand(2, 5, 2, 16)(dtype).transpose(1, 2), rand(2, 2, 5, 16)), {}),
            ("strided", (strided(1, 2, 5, 8), strided(1, 2, 5, 8), strided(1, 2, 5, 8)), {}),
            ("one key", (rand(1, 1, 1, 8), rand(1, 1, 1, 8), rand(1, 1, 1, 8)), {}),
            ("empty", (rand(1, 2, 0, 8), rand(1, 2, 4, 8), rand(1, 2, 4, 8)), {}),
        ],
        differentiable=(0, 1, 2),
    ),
    *cases("quantized_linear", QUANTIZED, differentiable=(0, 2, 4)),
    *cases(
        "dynamic_quantize",
        [
            ("contiguous", (rand(3, 5, 37),), {}),
            ("groups", (rand(3, 64),), {"group_size": 16}),
            ("zeros", (lambda dtype: torch.zeros(2, 8, dtype=dtype),), {}),
            ("not finite", (lambda dtype: torch.tensor([[1.0, torch.inf], [2, -4]]).to(dtype),),
             {}),
            ("strided", (strided(3, 5, 37),), {}),
            ("one row", (rand(7),), {}),
            ("empty", (rand(0, 7),), {}),
        ],
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def on(device, arguments):
    """Moves tensors, with their strides: an aliased element is aliased there too."""

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        there = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
        if 0 in value.stride():
            base = value[tuple(slice(0, 1) if s == 0 else slice(None) for s in value.stride())]
            return base.to(device).expand(value.shape)
        return there.copy_(value)

    return tuple(map(move, arguments))


def close(result, expected, dtype):
    parts = zip(
        result if isinstance(result, tuple) else (result,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    )
    for ours, theirs in parts:
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if not ours.numel():
            continue
        a, b = ours.cpu().double(), theirs.cpu().double()
        if not theirs.dtype.is_floating_point or not b.isfinite().all():
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
            continue
        difference = float((a - b).abs().max()) / max(float(b.abs().max()), 1e-3)
        assert difference <= TOLERANCE[dtype]


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op_equals_its_reference(case, dtype, device):
    arguments = case.make(dtype)
    given = on(device, arguments)
    result = case.call(*given, **case.options)
    first = result[0] if isinstance(result, tuple) else result
    assert first.device.type == device
    close(result, case.reference(*arguments, **case.options), dtype)
    for before, after in zip(arguments, given, strict=True):
        if isinstance(before, torch.Tensor):
            assert torch.equal(after.cpu(), before)


# Differences cannot be taken where one element of memory stands for several of the tensor.
DIFFERENTIABLE = [
    case for case in CASES if case.differentiable and case.layout not in ("empty", "expanded")
]


def needing_gradients(case, device="cpu"):
    arguments = list(on(device, case.make(torch.float64)))
    for index in case.differentiable:
        if index < len(arguments) and arguments[index] is not None:
            arguments[index] = arguments[index].detach().requires_grad_()
    return arguments


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_gradient_equals_differences(case):
    if case.layout in ("wide", "large"):
        case = Case(case.op, case.reference, all_of(rand(2, 7), rand(7) if case.op == "rms_norm"
                    else rand(2, 7)), case.options, case.differentiable)  # fmt: skip
    arguments = needing_gradients(case)
    assert torch.autograd.gradcheck(
        lambda *given: case.call(*given, **case.options), arguments, fast_mode=True
    )


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_gradient_on_npu_equals_that_of_the_reference(case):
    theirs, ours = needing_gradients(case), needing_gradients(case, "npu")
    for mine, reference in zip(ours, theirs, strict=True):
        if isinstance(mine, torch.Tensor):
            mine.data.copy_(reference.data)
    expected = case.reference(*theirs, **case.options)
    seed = torch.randn_like(expected)
    expected.backward(seed)
    case.call(*ours, **case.options).backward(seed.to("npu"))
    for mine, reference in zip(ours, theirs, strict=True):
        if isinstance(reference, torch.Tensor) and reference.requires_grad:
            assert mine.grad.device.type == "npu"
            close(mine.grad, reference.grad, torch.float32)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_registrations_hold_what_torch_asks_of_an_op(case, device):
    op = case.call.default
    arguments = on(device, case.make(torch.float32))
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    torch.library.opcheck(op, arguments, case.options, test_utils=checks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_are_kept_in_float32(dtype):
    x = torch.full((1, 4096), 0.1).to(dtype)
    ones = torch.ones(4096)
    assert torch.equal(torch.ops.npu.rms_norm(x, ones), torch.ones(1, 4096, dtype=dtype))


def test_every_op_has_cases():
    assert {case.op for case in CASES} == set(fused.__all__)


def test_ops_run_where_gradients_are_off_without_a_graph():
    x = torch.randn(3, 8, requires_grad=True)
    with torch.no_grad():
        assert not torch.ops.npu.rms_norm(x, torch.ones(8)).requires_grad


def test_backward_through_quantization_says_that_there_is_none():
    x = torch.randn(2, 8, requires_grad=True)
    _, scale = torch.ops.npu.dynamic_quantize(x)
    with pytest.raises(RuntimeError, match=r"npu\.dynamic_quantize: .*\[op-gradient\]"):
        scale.sum().backward()

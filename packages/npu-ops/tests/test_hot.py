"""Hot kernels: calls that they serve; all others take the boxed path to the same result."""

import pytest
import torch

import npu_ops
from npu_runtime import observe

CALLS = {
    "add": lambda x, y: x + y,
    "alpha": lambda x, y: torch.sub(x, y, alpha=3),
    "number": lambda x, y: (x + 0.1) * 3 - 1,
    "reversed number": lambda x, y: 2 / (3 - x),
    "in place": lambda x, y: x.clone().mul_(y).div_(3).add_(1),
    "unary": lambda x, y: x.exp().neg().sigmoid().tanh().abs().sqrt().rsqrt().log(),
    "relu": lambda x, y: torch.relu(x - y),
    "relu_": lambda x, y: x.sub(y).relu_(),
    "silu": lambda x, y: torch.nn.functional.silu(x),
    "pow": lambda x, y: x**2 + x**0.5 + x**y + x**0,
    "compare": lambda x, y: (x > y) | (x == 1.5) | (x != 2) | (y <= x) | (x < 1) | (x >= y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "where number": lambda x, y: torch.where(x > y, x, 0.25),
    "clamp": lambda x, y: x.clamp(0.5, 1.5).clamp(min=0.7).clamp(max=1.4).clamp_min(0.8),
    "optimizer": lambda x, y: x.clone().addcmul_(x, y, value=2).addcdiv_(x, y).lerp_(y, 0.25),
    "extremes": lambda x, y: torch.maximum(x, y) - torch.minimum(x, y),
    "cat": lambda x, y: torch.cat([x, y, x], dim=-1),
    "fill": lambda x, y: torch.cat([torch.empty_like(x).fill_(3), y.clone().zero_()]),
    "broadcast": lambda x, y: x[:1] + y[:, :1],
    "strided": lambda x, y: x.t() + y.t()[:, ::1].mul(2),
}


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
WITHOUT_INTEGERS = {"in place", "silu", "optimizer"}


def operands(dtype, device):
    generator = torch.Generator().manual_seed(0)
    pair = [torch.rand(4, 5, generator=generator).add(0.5) for _ in range(2)]
    if not dtype.is_floating_point:
        pair = [tensor.mul(4).add(1) for tensor in pair]
    return [tensor.to(dtype).to(device) for tensor in pair]


@pytest.mark.parametrize(
    "name, dtype",
    [(name, dtype) for name in CALLS for dtype in FLOATS]
    + [(name, dtype) for name in CALLS if name not in WITHOUT_INTEGERS for dtype in INTEGERS],
)
def test_result_is_the_cpus_to_the_bit(name, dtype):
    call = CALLS[name]
    expected, got = (call(*operands(dtype, device)) for device in ("cpu", "npu"))
    assert got.device.type == "npu"
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_calls_on_floats_are_no_fallback(call):
    x, y = operands(torch.float32, "npu")
    call(x, y)  # the first call of an op asks on the boxed path whether programs may serve it
    npu_ops.reset_fallback_report()
    call(x, y)
    composed = {"aten::bitwise_or.Tensor", "aten::rsub.Scalar"}
    assert set(npu_ops.fallback_report()) <= composed


@pytest.mark.parametrize(
    "left, right",
    [
        (torch.float32, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.float32),
        (torch.bool, torch.int64),
    ],
)
def test_two_dtypes_are_promoted_as_on_the_cpu(left, right):
    def call(device):
        x, y = (
            torch.ones(3, dtype=left, device=device),
            torch.full((3,), 3, device=device).to(right),
        )
        return [x + y, x * y, x / y, x < y, torch.where(x > 0, x, y), torch.cat([x, y])]

    for got, expected in zip(call("npu"), call("cpu"), strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("number", [1.0001, 2**53 + 1, 1e300, float("nan"), True, 3 + 1j])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_numbers_are_rounded_as_on_the_cpu(number, dtype):
    def call(device):
        x = torch.tensor([1, 2, 3], dtype=dtype, device=device)
        return [x + number, x * number, x / number, x == number]

    for got, expected in zip(call("npu"), call("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("shape", [(0,), (3,), (7,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_out_is_resized_and_cast_into(shape, dtype):
    x, out = torch.ones(3, device="npu"), torch.empty(shape, dtype=dtype, device="npu")
    assert torch.add(x, x, out=out) is out
    assert (out.dtype, out.tolist()) == (dtype, [2.0] * 3)


MISTAKES = {
    "in place too small": lambda d: torch.ones(3, device=d).add_(torch.ones(2, 3, device=d)),
    "in place cast": lambda d: torch.ones(3, dtype=torch.int64, device=d).div_(2),
    "relu of bools": lambda d: torch.ones(3, dtype=torch.bool, device=d).relu(),
    "shapes": lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
    "expanded": lambda d: torch.ones(1, device=d).expand(3).add_(1),
    "overlap": lambda d: (lambda x: x[1:].add_(x[:-1]))(torch.ones(4, device=d)),
    "copy overlap": lambda d: (lambda x: x[1:].copy_(x[:-1]))(torch.ones(4, device=d)),
    "out cast": lambda d: torch.add(torch.ones(3, device=d), 1, out=torch.ones(3, device=d).long()),
    "cat shapes": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(3, 2, device=d)]),
    "bool minus": lambda d: torch.ones(3, device=d).bool() - torch.ones(3, device=d).bool(),
}


@pytest.mark.parametrize("call", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_raise_what_the_cpu_raises(call):
    with pytest.raises(RuntimeError) as expected:
        call("cpu")
    with pytest.raises(type(expected.value)) as got:
        call("npu")
    assert str(got.value) == str(expected.value)


def test_mixed_devices_name_the_argument():
    with pytest.raises(RuntimeError, match=r"argument 'other' of aten::add.Tensor.*\[device-mix\]"):
        torch.ones(3, device="npu") + torch.ones(3)


def test_odd_tensors_take_the_boxed_path():
    z = torch.tensor([1 + 2j, 3 - 1j])
    x = torch.arange(4.0)
    on_npu = z.to("npu"), x.to("npu")

    def call(z, x):
        lazy = torch._lazy_clone(x)
        return [z.conj() * 2, z.conj().imag + 1, lazy.add_(1), x + 0, x.expand(2, 4) * 2, x[:0] + 1]

    for got, expected in zip(call(*on_npu), call(z, x), strict=True):
        assert torch.equal(got.cpu(), expected)


def test_freed_memory_is_an_error():
    x = torch.ones(3, device="npu")
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"\[storage-freed\]"):
        x + 1


def test_results_in_inference_mode_are_inference_tensors():
    with torch.inference_mode():
        assert (torch.ones(3, device="npu") + 1).is_inference()


def test_gradients_and_versions():
    x = torch.tensor([1.0, -2.0], device="npu", requires_grad=True)
    y = (x * 3).relu()
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 0.0]
    z = torch.ones(2, device="npu")
    (z * x).sum()
    version = z._version
    z.add_(1)
    assert z._version == version + 1


def test_a_captured_graph_refuses_them():
    x = torch.ones(3, device="npu")
    graph = torch.npu.graph(torch.npu.NPUGraph())
    with pytest.raises(RuntimeError, match=r"\[capture-host-op\]"), graph:
        x.add_(1)
    assert x.tolist() == [1.0] * 3


def test_listeners_get_a_span_of_their_own_kind():
    events = []
    x = torch.ones(4, device="npu")
    observe.add_listener(events.extend)
    try:
        x.add_(1).exp()
        observe.flush()
    finally:
        observe.remove_listener(events.extend)
    spans = [event.name for event in events if event.category == "kernel"]
    assert spans == ["aten::add_.Tensor", "aten::exp"]
    assert not [event for event in events if event.category == "fallback"]


@pytest.mark.parametrize("size", [8, 100_000])
def test_copies_in_every_direction(size):
    host = torch.arange(size, dtype=torch.float32)
    there = torch.empty(size, device="npu").copy_(host)
    again = torch.empty(size, device="npu").copy_(there)
    assert torch.equal(torch.empty(size).copy_(again), host)
    assert torch.equal(
        torch.empty(size, dtype=torch.int64, device="npu").copy_(there).cpu(), host.long()
    )
    turned = torch.empty(2, size // 2, device="npu").t().copy_(there.view(-1, 2))
    assert torch.equal(turned.cpu(), host.view(-1, 2))


def test_numbers_of_every_dtype_are_read():
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.complex64):
        value = torch.ones(1, dtype=dtype)
        assert value.to("npu").item() == value.item()
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.ones(2, device="npu").item()


def test_kernels_are_told_only_while_a_listener_wants_them():
    x = torch.ones(4, device="npu")
    first, second = [], []

    def hear(events):
        first.extend(event.category for event in events)

    def hear_too(events):
        second.extend(event.category for event in events)

    observe.add_listener(hear, with_kernels=False)
    x.relu()
    observe.flush()
    assert "kernel" not in first
    assert "memory" in first
    observe.add_listener(hear_too)
    x.relu()
    observe.remove_listener(hear_too)
    assert "kernel" in second
    first.clear()
    x.relu()
    observe.remove_listener(hear)
    assert "kernel" not in first

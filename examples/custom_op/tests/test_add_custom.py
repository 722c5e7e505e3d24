"""The operator `add_custom` against plain torch: eagerly on both devices, and in torch.compile."""

import pytest
import torch

import npu_compiler
import npu_ops
from add_custom import add_custom

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def reference(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """The op's computation, in plain torch on the CPU."""
    left, right = x.detach().cpu().double(), y.detach().cpu().double()
    return (left + alpha * right).to(x.dtype)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_are_those_of_plain_torch(device, dtype):
    x, y = (torch.randn(33, 65, device=device).to(dtype) for _ in range(2))
    result = add_custom(x, y, 0.3)
    assert result.device == x.device
    assert result.dtype is dtype
    npu_ops.verify_correctness(result, reference(x, y, 0.3)).raise_if_failed()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t(),
        lambda x: x[::2, 1:],
        lambda x: x[:0],
        lambda x: x[0, 0],
        lambda x: x[:, :1].expand(-1, 7),
    ],
    ids=["transposed", "strided", "empty", "zero-dim", "expanded"],
)
def test_any_layout(make):
    x, y = (make(torch.randn(8, 9, device="npu")) for _ in range(2))
    npu_ops.verify_correctness(add_custom(x, y, 2.5), reference(x, y, 2.5)).raise_if_failed()


def test_the_kernel_runs_on_npu_memory_and_is_no_fallback():
    x = torch.randn(100, device="npu")
    npu_ops.reset_fallback_report()
    add_custom(x, x)
    assert "add_custom::add_custom" not in npu_ops.fallback_report()


def test_integers_are_refused():
    with pytest.raises(ValueError, match="must be of a float dtype, got Long"):
        add_custom(*[torch.arange(4, device="npu")] * 2)


def test_tensors_that_do_not_fit_are_refused():
    x = torch.randn(4, device="npu")
    with pytest.raises(ValueError, match=r"the shape and dtype of x, Float\[4\], got Float\[3\]"):
        add_custom(x, x[1:])
    with pytest.raises(ValueError, match="the shape and dtype of x"):
        add_custom(x, x.half())
    with pytest.raises(ValueError, match="the device of x, npu:0, got cpu"):
        add_custom(x, x.cpu())


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_gradients_of_first_and_second_order(device):
    x, y = (
        torch.randn(5, device=device, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    assert torch.autograd.gradcheck(lambda x, y: add_custom(x, y, 0.7), (x, y))
    assert torch.autograd.gradgradcheck(lambda x, y: add_custom(x * y, y, 0.7), (x, y))


def test_schema_fake_and_autograd_agree_with_the_kernel():
    x, y = (torch.randn(4, 5, requires_grad=True) for _ in range(2))
    torch.library.opcheck(torch.ops.add_custom.add_custom.default, (x, y, 0.7))


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_compiled_it_is_in_one_program(device, dtype):
    def function(x):
        return torch.relu(add_custom(x, x + 1, 0.3)) + 1

    x = torch.randn(16, 16, device=device).to(dtype)
    with torch.no_grad():
        what = npu_compiler.explain(function, x)
        assert (what.program_count, what.eager) == (1, ()), str(what)
        result = torch.compile(function, backend="npu")(x)
        npu_ops.verify_correctness(result, function(x).cpu()).raise_if_failed()


def test_compiled_it_trains_as_eagerly():
    weight = torch.randn(16, 16, device="npu")

    def gradient(function):
        x = torch.linspace(-1, 1, 16, device="npu", requires_grad=True)
        function(x).square().sum().backward()
        return x.grad

    def function(x):
        return torch.tanh(add_custom(weight @ x, x, 0.3))

    what = npu_compiler.explain(function, torch.ones(16, device="npu", requires_grad=True))
    assert what.eager == (), str(what)
    compiled = gradient(torch.compile(function, backend="npu"))
    npu_ops.verify_correctness(compiled, gradient(function), 1e-4, 1e-5).raise_if_failed()

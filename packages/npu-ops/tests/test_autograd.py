import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


def test_backward_in_a_thread_of_the_device_stays_on_the_device():
    seen = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append((threading.get_ident(), gradient.device.type))
            return gradient * 2

    x = torch.ones(3, device="npu", requires_grad=True)
    y = Watch.apply(x).sum()
    with torch.autograd.set_multithreading_enabled(True):
        y.backward()
    assert x.grad.tolist() == [2.0] * 3
    assert seen[0][0] != threading.get_ident()
    assert seen[0][1] == "npu"


def test_gradient_through_views_and_in_place_writes():
    a = torch.ones(4, device="npu", requires_grad=True)
    b = a * 1
    b[1:3].mul_(2)
    b.view(2, 2)[1].add_(5)
    b.sum().backward()
    assert a.grad.tolist() == [1.0, 2.0, 2.0, 1.0]


def test_a_saved_tensor_that_was_changed_is_an_error():
    a = torch.ones(4, device="npu", requires_grad=True)
    b = a.exp()
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        b.sum().backward()


def test_in_place_on_a_leaf_is_an_error():
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        torch.ones(2, device="npu", requires_grad=True).add_(1)


def test_out_of_an_op_that_needs_gradients_is_an_error():
    a = torch.ones(2, device="npu", requires_grad=True)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.add(a, a, out=torch.empty(2, device="npu"))


def test_gradient_crosses_devices():
    a = torch.ones(3, requires_grad=True)
    (a.to("npu") * 3).cpu().sum().backward()
    assert a.grad.device.type == "cpu"
    assert a.grad.tolist() == [3.0] * 3


@pytest.mark.parametrize(
    "function",
    [
        torch.sin,
        torch.softmax,
        torch.cumsum,
        lambda x, d: torch.linalg.svd(x).S,
        lambda x, d: x.logsumexp(d),
    ],
    ids=["sin", "softmax", "cumsum", "svd", "logsumexp"],
)
def test_gradcheck(function):
    x = torch.randn(3, 4, dtype=torch.float64, device="npu", requires_grad=True)
    call = (lambda x: function(x)) if function is torch.sin else (lambda x: function(x, 1))
    assert torch.autograd.gradcheck(call, (x,))
    assert torch.autograd.gradgradcheck(call, (x,))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's decompositions
def test_forward_mode_and_vmap():
    x = torch.randn(3, device="npu")
    value, tangent = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    assert torch.equal(value, x.sin())
    assert torch.equal(tangent, x.cos())
    batch = torch.randn(4, 3, device="npu")
    assert torch.equal(torch.func.vmap(torch.sum)(batch), batch.sum(1))
    assert torch.equal(torch.func.grad(lambda v: (v * v).sum())(x), 2 * x)


def test_checkpoint_recomputes_the_same_dropout():
    x = torch.ones(64, device="npu", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(
        lambda v: torch.nn.functional.dropout(v, 0.5), x, use_reentrant=False
    )
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_hooks_and_retained_gradients():
    x = torch.ones(2, device="npu", requires_grad=True)
    middle = x * 3
    middle.retain_grad()
    x.register_hook(lambda gradient: gradient * 10)
    middle.sum().backward()
    assert middle.grad.tolist() == [1.0, 1.0]
    assert x.grad.tolist() == [30.0, 30.0]


def hook_threads():
    """Threads that ran the hook of a gradient in a backward of the calling thread."""
    threads = []
    y = torch.ones(2, device="npu", requires_grad=True) * 2
    y.register_hook(lambda grad: threads.append(threading.get_native_id()))
    y.sum().backward()
    return threads


def test_backward_runs_in_the_thread_that_calls_it():
    assert hook_threads() == [threading.get_native_id()]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(hook_threads).result() == [pool.submit(threading.get_native_id).result()]

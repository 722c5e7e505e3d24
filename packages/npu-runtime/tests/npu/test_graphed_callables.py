"""Replayed passes of small programs; those of compiled modules are tested by npu-compiler."""

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops

from npu_runtime import InputError, load_program

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def square(save_model):
    """x * w as a function whose passes are programs, for x and w of shape (4,)."""

    def program(name: str, build):
        ports = [ops.parameter([4], np.float32, name=f"p{index}") for index in range(3)]
        results = build(*ports)
        model = ov.Model([ops.result(r) for r in results], ports, name)
        return load_program(save_model(model), name=name, options=F32)

    forward = program("forward", lambda x, w, _: [ops.multiply(x, w)])
    backward = program("backward", lambda x, w, g: [ops.multiply(g, w), ops.multiply(g, x)])

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return forward.run([x, w, x])[0]

        @staticmethod
        def backward(ctx, gradient):
            x, w = ctx.saved_tensors
            return tuple(backward.run([x, w, gradient]))

    return Times.apply


class Weighted(torch.nn.Module):
    def __init__(self, times):
        super().__init__()
        self.times = times
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x):
        return {"result": self.times(x, self.weight)}


def sample(**options) -> torch.Tensor:
    return torch.zeros(4, device="npu", **options)


def test_a_functions_passes_are_replayed(square):
    graphed = torch.npu.make_graphed_callables(
        square, (sample(requires_grad=True), sample(requires_grad=True))
    )
    for value in (3.0, -2.0):
        x = torch.full((4,), value, device="npu", requires_grad=True)
        w = torch.arange(4.0, device="npu").requires_grad_()
        y = graphed(x, w)
        (y * torch.tensor([1.0, 1.0, 2.0, 2.0], device="npu")).sum().backward()
        assert y.tolist() == [value * number for number in range(4)]
        assert x.grad.tolist() == [0.0, 1.0, 4.0, 6.0]
        assert w.grad.tolist() == [value, value, 2 * value, 2 * value]


def test_a_module_trains_and_keeps_its_way_for_the_other_mode(square):
    module = Weighted(square).to("npu")
    graphed = torch.npu.make_graphed_callables(module, (sample(),))
    assert graphed is module
    x = torch.ones(4, device="npu")
    graphed(x)["result"].sum().backward()
    assert module.weight.grad.tolist() == [1.0] * 4
    with torch.no_grad():
        module.weight.mul_(10)  # in place: the capture sees it
    assert graphed(x)["result"].tolist() == [10.0, 20.0, 30.0, 40.0]
    replayed = graphed(x)["result"]
    assert type(replayed.grad_fn).__name__ == "ReplayBackward"
    module.eval()
    assert type(graphed(x)["result"].grad_fn).__name__ == "TimesBackward"


def test_several_callables_share_a_pool(square):
    pool = torch.npu.graph_pool_handle()
    first, second = torch.npu.make_graphed_callables(
        (square, square),
        ((sample(requires_grad=True), sample()), (sample(requires_grad=True), sample())),
        pool=pool,
    )
    x = torch.full((4,), 2.0, device="npu", requires_grad=True)
    w = torch.full((4,), 5.0, device="npu")
    y = second(first(x, w), w)
    y.sum().backward()
    assert y.tolist() == [50.0] * 4
    assert x.grad.tolist() == [25.0] * 4
    assert torch.npu.memory_snapshot(pool)


def test_a_host_op_in_a_pass_is_told():
    with pytest.raises(RuntimeError, match="capture-host-op"):
        torch.npu.make_graphed_callables(lambda x: x + 1, (sample(),))
    assert not torch.npu.is_current_stream_capturing()
    assert (sample() + 1).sum().item() == 4


def test_what_cannot_be_graphed_is_refused(square):
    hooked, buffered = Weighted(square).to("npu"), Weighted(square).to("npu")
    hooked.register_forward_hook(lambda *_: None)
    buffered.register_buffer("trained", sample(requires_grad=True))
    cases = [
        (hooked, (sample(),), "no hooks"),
        (buffered, (sample(),), "must not require grad"),
        (square, (torch.zeros(4), sample()), "got one on cpu"),
        (square, (3, sample()), "got int"),
    ]
    for function, arguments, rule in cases:
        with pytest.raises(InputError, match=rule) as caught:
            torch.npu.make_graphed_callables(function, arguments)
        assert caught.value.code == "graphed-callable"
    with torch.autocast("npu"), pytest.raises(InputError, match="cache_enabled=False"):
        torch.npu.make_graphed_callables(square, (sample(), sample()))

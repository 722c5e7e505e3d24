"""Captured steps of small programs; npu-compiler tests compiled modules."""

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops

from npu_runtime import InputError, load_program

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def add_one(save_model, add_one_model):
    return load_program(save_model(add_one_model), name="add_one", options=F32)


def test_a_replay_reads_and_writes_the_captured_tensors(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        middle = add_one.run([x])[0]
        result = add_one.run([middle])[0]
    assert len(graph) == 2
    assert result.sum().item() == 128
    for value in (5.0, -3.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(result.cpu(), torch.full((64,), value + 2))


def test_a_replay_keeps_captured_memory_alive(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = add_one.run([add_one.run([x])[0]])[0]
    filler = [torch.full((64,), -9.0, device="npu") for _ in range(20)]
    graph.replay()
    assert torch.equal(result.cpu(), torch.full((64,), 2.0))
    assert all(torch.equal(other.cpu(), torch.full((64,), -9.0)) for other in filler)


def test_a_replay_bumps_the_version_of_what_it_writes(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = add_one.run([x])[0]
    version = result._version
    graph.replay()
    assert result._version > version


def test_host_kernels_cannot_be_captured(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="capture-host-op"), torch.npu.graph(graph):
        add_one.run([x + 1])
    assert not torch.npu.is_current_stream_capturing()
    assert (x + 1).sum().item() == 64


def test_views_are_allowed_in_a_capture(add_one):
    x = torch.zeros(2, 64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = add_one.run([x[1]])[0]
    x.fill_(4)
    graph.replay()
    assert torch.equal(result.cpu(), torch.full((64,), 5.0))


def test_a_replay_on_another_stream_waits_for_the_run_before(add_one, delayed):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    streams = [torch.npu.Stream() for _ in range(3)]
    with torch.npu.graph(graph, stream=streams[0]):
        add_one.run([x], outputs=[x])
    for turn in range(12):
        with torch.npu.stream(streams[turn % 3]):
            graph.replay()
    assert torch.equal(x.cpu(), torch.full((64,), 13.0))


def test_states_that_make_no_sense_are_refused(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with pytest.raises(InputError, match="nothing was captured") as caught:
        graph.replay()
    assert caught.value.code == "capture-state"
    with pytest.raises(InputError, match="without capture_begin"):
        graph.capture_end()
    with torch.npu.graph(graph):
        add_one.run([x])
        with pytest.raises(InputError, match="is already capturing a graph"):
            torch.npu.NPUGraph().capture_begin()
    with pytest.raises(InputError, match="holds a capture"):
        graph.capture_begin()
    graph.reset()
    assert len(graph) == 0
    with torch.npu.graph(graph, stream=torch.npu.Stream()):
        add_one.run([x])
    graph.replay()
    torch.npu.synchronize()


def test_a_session_cannot_be_captured(save_model, counter_model):
    session = load_program(save_model(counter_model), name="counter", options=F32).session()
    x = torch.ones(2, device="npu")
    with pytest.raises(InputError) as caught, torch.npu.graph(torch.npu.NPUGraph()):
        session.run([x])
    assert caught.value.code == "capture-session"


def test_a_dynamic_program_cannot_be_captured(save_model, dynamic_model):
    program = load_program(save_model(dynamic_model), name="dynamic", options=F32)
    x = torch.ones(3, 4, device="npu")
    with pytest.raises(InputError) as caught, torch.npu.graph(torch.npu.NPUGraph()):
        program.run([x])
    assert caught.value.code == "capture-dynamic"


def test_a_captures_memory_lies_in_the_graphs_pool(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with pytest.raises(InputError, match="no memory pool before"):
        graph.pool()
    with torch.npu.graph(graph):
        result = add_one.run([x])[0]
    blocks = {
        block["address"]
        for segment in torch.npu.memory_snapshot(graph.pool())
        for block in segment["blocks"]
    }
    assert result.data_ptr() in blocks
    assert x.data_ptr() not in blocks
    pool = graph.pool()
    graph.reset()
    assert torch.equal(result.cpu(), torch.ones(64))
    del result
    assert torch.npu.memory_snapshot(pool) == []


def test_graphs_can_share_a_pool(add_one):
    x = torch.zeros(64, device="npu")
    pool = torch.npu.graph_pool_handle()
    assert pool != torch.npu.graph_pool_handle()
    first, second = torch.npu.NPUGraph(), torch.npu.NPUGraph()
    with torch.npu.graph(first, pool=pool):
        middle = add_one.run([x])[0]
    with torch.npu.graph(second, pool=first.pool(), capture_error_mode="thread_local"):
        result = add_one.run([middle])[0]
    assert second.pool() == pool
    x.fill_(5)
    first.replay()
    second.replay()
    assert result[0].item() == 7


def test_a_mode_that_is_none_is_refused(add_one):
    with (
        pytest.raises(InputError, match="'strict'"),
        torch.npu.graph(torch.npu.NPUGraph(), capture_error_mode="strict"),
    ):
        add_one.run([torch.zeros(64, device="npu")])
    assert not torch.npu.is_current_stream_capturing()


@pytest.mark.parametrize("make", [torch.npu.NPUGraph, torch.accelerator.Graph])
def test_a_dump_lists_the_programs(add_one, make, tmp_path):
    x = torch.zeros(64, device="npu")
    graph = make()
    graph.enable_debug_mode()
    graph.capture_begin()
    add_one.run([x])
    graph.capture_end()
    graph.instantiate()
    path = tmp_path / "graph.txt"
    graph.debug_dump(str(path))
    [line] = path.read_text().splitlines()
    assert line.startswith("add_one in Float[64]@")
    with pytest.raises((OSError, RuntimeError), match="no folder") as caught:
        graph.debug_dump(str(tmp_path / "no folder" / "graph.txt"))
    if make is torch.accelerator.Graph:  # torch's class, which calls native code
        assert "[capture-dump]" in str(caught.value)


def test_torchs_graph_of_any_accelerator_captures_and_replays(add_one):
    x = torch.zeros(64, device="npu")
    graph = torch.accelerator.Graph(pool=torch.npu.graph_pool_handle())
    with torch.Stream(), graph:
        result = add_one.run([x])[0]
    x.fill_(8)
    graph.replay()
    torch.accelerator.synchronize()
    assert result[0].item() == 9
    assert graph.pool() == graph.graph_pool
    graph.reset()
    with pytest.raises(RuntimeError, match="nothing was captured"):
        graph.replay()


def test_a_graph_waits_for_the_device_of_its_programs(run_python, save_model, add_one_model):
    path = save_model(add_one_model)
    done = run_python(
        "import torch, npu_runtime, npu_runtime.sim\n"
        f"p = npu_runtime.load_program({str(path)!r}, name='p', options={F32!r}, device_index=1)\n"
        "x = torch.zeros(64, device='npu:1')\n"
        "graph = torch.npu.NPUGraph()\n"
        "with torch.npu.graph(graph):\n"  # the current device is npu:0
        "    result = p.run([x])[0]\n"
        "with npu_runtime.sim.delay(20_000, 20_000):\n"
        "    graph.replay()\n"
        "    del graph\n"
        "    stream = torch.npu.current_stream('npu:1')\n"
        "    print(stream.query(), result.sum().item())",
        NPU_DRIVER="sim",
        NPU_DEVICE="SIM2",
    )
    assert done.stdout.split() == ["True", "64.0"], done.stderr


@pytest.fixture
def square(save_model):
    """x * w as a function with programs as passes, for x and w of shape (4,)."""

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

"""Elements that are read as numbers stay within a program."""

from __future__ import annotations

import pytest
import torch

import npu_compiler
from npu_compiler import GraphBuilder
from npu_compiler.lowering.registry import _TABLE
from npu_compiler.passes.memory import SeparateOutputViews


def scaled(x):
    return x * x.sum().item() - 1


class Scaled(torch.nn.Module):
    def forward(self, x):
        return scaled(x)


def test_an_exported_model_is_one_program(tmp_path):
    x = torch.randn(3, 4)
    npu_compiler.export(Scaled(), (x,), tmp_path / "model")
    loaded = npu_compiler.load(tmp_path / "model")
    torch.testing.assert_close(loaded(x), scaled(x))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.int() * x.sum().item(), id="integers become floats"),
        pytest.param(lambda x: x.half() + x.sum().item(), id="half stays half"),
        pytest.param(lambda x: x.sum() * x.amax().item(), id="both without axes"),
        pytest.param(lambda x: x.clamp(max=x.mean().item()), id="another call"),
    ],
)
def test_numbers_mean_what_they_mean_to_torch(compiled, function):
    x = torch.randn(3, 4)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        found, expected = compiled(function)(x), function(x)
    torch.testing.assert_close(found, expected)
    assert found.dtype is expected.dtype


def test_a_graph_built_by_hand_uses_its_elements():
    graph = GraphBuilder()
    x = graph.parameter((3, 4))
    graph.compile(scaled(x))
    given = torch.randn(3, 4)
    torch.testing.assert_close(graph.run(given), scaled(given))
    with pytest.raises(npu_compiler.GraphError, match=r"\[graph-op\]"):
        x.item()


npu = torch.ops.npu
DEVICES = ["cpu", "npu"]


def rand(*shape):
    return torch.randn(*shape)


def step(count, device):
    shapes = (1, 4, count, 8), (1, 2, count, 8), (1, 2, count, 8)
    return tuple(rand(*shape).to(device) for shape in shapes)


class Cached(torch.nn.Module):
    """Attention over a cache in buffers; the keys' buffer is part of a larger one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.zeros(2, 1, 2, 16, 8))
        self.register_buffer("values", torch.zeros(1, 2, 16, 8))

    def forward(self, q, k, v, position):
        out = npu.fused_attention(q * 2, k, v, self.whole[1], self.values, position)
        return out @ v.mT.repeat_interleave(2, 1)


def same_state(model, eager):
    for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_cache_is_written_in_place_step_by_step(compiled, close, device):
    eager, model = Cached().to(device), Cached().to(device)
    addresses = [buffer.data_ptr() for buffer in model.buffers()]
    fast = compiled(model, fullgraph=True)
    position = 0
    with torch.no_grad():
        for count in (4, 1, 1, 2):
            given = step(count, device)
            close(fast(*given, position), eager(*given, position))
            same_state(model, eager)
            position += count
    assert [buffer.data_ptr() for buffer in model.buffers()] == addresses
    assert set(fast.eager_ops) <= {"npu.fused_attention.cache", "aten.as_strided.default"}


@pytest.mark.parametrize("device", DEVICES)
def test_two_writes_to_one_cache_happen_in_order(compiled, close, device):
    class Twice(Cached):
        def forward(self, q, k, v, position):
            first = npu.fused_attention(q, k, v, self.whole[1], self.values, position)
            second = npu.fused_attention(first * 2, v, k, self.whole[1], self.values, position + 1)
            return first.exp() + second

    eager, model = Twice().to(device), Twice().to(device)
    given = step(2, device)
    with torch.no_grad():
        close(compiled(model)(*given, 3), eager(*given, 3))
    same_state(model, eager)


@pytest.mark.parametrize("device", DEVICES)
def test_former_content_that_is_read_later_is_kept(compiled, close, device):
    class Later(Cached):
        def forward(self, q, k, v, position):
            before = self.values.clone()
            out = npu.fused_attention(q, k, v, self.whole[1], self.values, position)
            return out.exp().sum() + (before * 2).sum(), before + 1, self.values * 3

    eager, model = Later().to(device), Later().to(device)
    for part in (eager, model):
        part.values.fill_(0.5)
    given = step(2, device)
    with torch.no_grad():
        close(compiled(model)(*given, 3), eager(*given, 3))
    same_state(model, eager)


@pytest.mark.parametrize("device", DEVICES)
def test_cache_made_inside_of_the_graph(compiled, close, device):
    def attend(q, k, v):
        keys, values = (torch.zeros(1, 2, 16, 8, device=q.device) for _ in range(2))
        out = npu.fused_attention(q * 2, k, v, keys, values, 0)
        return out, keys * 2, values

    given = step(3, device)
    with torch.no_grad():
        close(compiled(attend)(*given), attend(*given))


@pytest.mark.parametrize("device", DEVICES)
def test_written_buffer_is_not_frozen(compiled, close, device):
    eager, model = Cached().to(device), Cached().to(device)
    fast = compiled(model)
    with torch.no_grad():
        for fill in (0.0, 1.0):
            for part in (eager, model):
                part.whole.fill_(fill)
                part.values.fill_(fill)
            given = step(1, device)
            close(fast(*given, 5), eager(*given, 5))


@pytest.mark.parametrize("device", DEVICES)
def test_call_without_a_result_writes_each_cache_its_own_content(compiled, device):
    library = torch.library.Library("write_in_place_test", "FRAGMENT")
    library.define("fill(Tensor(a!) ones, Tensor(b!) twos, Tensor x) -> ()")

    def fill(ones, twos, x):
        ones.copy_(x)
        twos.copy_(x * 2)

    library.impl("fill", fill, "CompositeExplicitAutograd")
    torch.library.register_fake("write_in_place_test::fill", lambda *_: None, lib=library)

    def function(ones, twos, x):
        torch.ops.write_in_place_test.fill(ones, twos, x + 1)
        return ones - twos

    ones, twos, x = (torch.full((3, 5), value, device=device) for value in (7.0, 8.0, 0.5))
    with torch.no_grad():
        result = compiled(function, fullgraph=True)(ones, twos, x)
    assert (ones.unique().tolist(), twos.unique().tolist()) == ([1.5], [3.0])
    assert result.unique().tolist() == [-1.5]
    library._destroy()


ops = torch.ops.functional_pass_test
IN_PROGRAM = {"target": "openvino", "strict": True}
ON_HOST = {"strict": True}


def write_ring(cache, rows, start):
    """Rows go round: cache[(start + i) % len(cache)] = rows[i]; returns their sum."""
    cache.copy_(written(cache, rows, start)[1])
    return rows.sum(-1)


def written(cache, rows, start):
    at = (start + torch.arange(len(rows), device=rows.device)) % len(cache)
    return rows.sum(-1), cache.index_copy(0, at, rows)


@pytest.fixture(autouse=True)
def op():
    library = torch.library.Library("functional_pass_test", "FRAGMENT")
    library.define("write_ring(Tensor(a!) cache, Tensor rows, Tensor start) -> Tensor")
    library.impl("write_ring", write_ring, "CompositeExplicitAutograd")
    name = "functional_pass_test::write_ring"
    torch.library.register_fake(name, lambda c, rows, s: rows.new_empty(len(rows)), lib=library)
    present = set(_TABLE)

    @npu_compiler.register_fx_node_converter(ops.write_ring.default)
    def convert(ctx, cache, rows, start):
        return npu_compiler.custom_op(ctx, written, [cache, rows, start])

    yield
    for key in set(_TABLE) - present:
        del _TABLE[key]
    library._destroy()


def writing_step(cache, rows, start):
    return ops.write_ring(cache, rows * 2, start) + cache.amax()


def given(device):
    cache = torch.linspace(-3, 2, 35).reshape(7, 5).to(device)
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(device)
    return cache, rows, torch.tensor(-2, device=device)


def both(function, options, *ours):
    """Results and written caches, compiled and eager."""
    theirs = [x.clone() for x in ours]
    with torch.no_grad():
        fast = torch.compile(function, backend="npu", fullgraph=True, options=options)
        return (fast(*ours), ours[0]), (function(*theirs), theirs[0])


def eager_calls(options, *inputs):
    with torch.no_grad():
        what = npu_compiler.explain(writing_step, *inputs, options=options)
    return [(call.op, call.reason) for call in what.eager]


@pytest.mark.parametrize("device", DEVICES)
def test_program_holds_the_call_and_the_cache_is_written(device):
    inputs = given(device)
    address = inputs[0].data_ptr()
    torch.testing.assert_close(*both(writing_step, IN_PROGRAM, *inputs))
    assert inputs[0].data_ptr() == address
    assert eager_calls(IN_PROGRAM, *given(device)) == []


@pytest.mark.parametrize("device", DEVICES)
def test_on_the_hosts_cores_the_ops_own_kernel_writes_in_place(device, monkeypatch, on_npu):
    monkeypatch.delenv("NPU_COMPILE_TARGET")
    torch.testing.assert_close(*both(writing_step, ON_HOST, *given(device)))
    reason = "its kernel on the host's cores is faster"
    left = [] if on_npu else [("functional_pass_test.write_ring.default", reason)]
    assert eager_calls(ON_HOST, *given(device)) == left


def test_former_content_read_before_and_after_stays_right():
    def function(cache, rows, start):
        before = cache * 3
        kept = cache.clone()
        first = ops.write_ring(cache, rows, start)
        second = ops.write_ring(cache, rows - 1, start + 4)
        return first, second, before, kept, cache + 1

    torch.testing.assert_close(*both(function, {"target": "openvino"}, *given("npu")))


@pytest.mark.parametrize("options", [IN_PROGRAM, ON_HOST], ids=["program", "host"])
def test_cache_that_is_a_part_of_a_larger_one_is_written_there_and_nowhere_else(
    options, monkeypatch
):
    monkeypatch.delenv("NPU_COMPILE_TARGET")

    def function(whole, rows, start):
        return writing_step(whole[1], rows, start)

    cache, rows, start = given("npu")
    whole = torch.full((3, 7, 5), 9.0, device="npu")
    whole[1] = cache
    options = {key: value for key, value in options.items() if key != "strict"}
    torch.testing.assert_close(*both(function, options, whole, rows, start))
    assert whole[0].unique().tolist() == whole[2].unique().tolist() == [9.0]


def test_named_in_fallback_ops_it_stays_with_its_own_kernel():
    options = {"target": "openvino", "fallback_ops": ("functional_pass_test.write_ring.default",)}
    torch.testing.assert_close(*both(writing_step, options, *given("npu")))
    assert len(eager_calls(options, *given("npu"))) == 1


def test_views_of_one_result_get_calls_of_their_own(rewrites):
    def function(x):
        y = x.sin()
        turned = y.t()
        return y, turned, turned.cos()

    done = rewrites(function, torch.randn(2, 3), passes=SeparateOutputViews())
    graph = done.module.graph
    views = [node for node in graph.nodes if node.target is torch.ops.aten.t.default]
    assert len(views) == 2
    assert sum(bool(node.meta.get("npu_is_output_view")) for node in views) == 1
    y, turned, _ = done.module(torch.ones(2, 3))
    assert turned.data_ptr() == y.data_ptr()


def test_single_view_of_a_result_stays_inside(rewrites):
    done = rewrites(lambda x: x.sin().t(), torch.randn(2, 3), passes=SeparateOutputViews())
    assert done.count == 0


STRIDED_VIEWS = {
    "slice": lambda x: x.relu()[:, 1:3],
    "rows": lambda x: x.relu()[1:],
    "chunk": lambda x: x.relu().chunk(2, 1)[1],
    "expand": lambda x: x.sum(1, keepdim=True).expand(-1, 6),
    "step": lambda x: x.relu()[::2, ::2],
    "split": lambda x: (x @ x.t()).split(2, 1)[1],
    "unfold": lambda x: x.relu().unfold(1, 3, 1),
    "unbind": lambda x: x.relu().unbind(0)[2],
    "diagonal": lambda x: x.relu().diagonal(),
    "select": lambda x: x.relu().select(1, 2),
    "as_strided": lambda x: x.relu().as_strided((2, 2), (2, 3), 1),
    "transpose": lambda x: x.relu().t(),
}


@pytest.mark.parametrize("name", STRIDED_VIEWS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_and_offsets_of_results_are_eagers(name, dynamic):
    function, x = STRIDED_VIEWS[name], torch.randn(4, 6)
    with torch.no_grad():
        expected = function(x)
        result = torch.compile(function, backend="npu", dynamic=dynamic)(x)
    torch.testing.assert_close(result, expected)
    assert (result.stride(), result.storage_offset()) == (
        expected.stride(),
        expected.storage_offset(),
    )


def test_view_of_an_input_is_taken_outside(rewrites):
    done = rewrites(lambda x: x.t(), torch.randn(2, 3), passes=SeparateOutputViews())
    (view,) = (node for node in done.module.graph.nodes if node.op == "call_function")
    assert view.meta["npu_is_output_view"]

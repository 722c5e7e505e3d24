"""Calls that write to an argument, in compiled graphs: in place where that is right."""

from __future__ import annotations

import pytest
import torch

npu = torch.ops.npu
DEVICES = ["cpu", "npu"]


def rand(*shape):
    return torch.randn(*shape)


def step(count, device):
    shapes = (1, 4, count, 8), (1, 2, count, 8), (1, 2, count, 8)
    return tuple(rand(*shape).to(device) for shape in shapes)


class Cached(torch.nn.Module):
    """Attention over a cache in buffers; the keys' lies inside of a larger one."""

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

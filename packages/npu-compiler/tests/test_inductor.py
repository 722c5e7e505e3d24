"""torch.compile with Inductor, torch's default, on npu tensors: equal to eager on cpu."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from npu_compiler.errors import CompilerError

# Inductor imports parts of torch that warn of themselves, and pickles for its cache.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh_cache():
    """Inductor would take code that it wrote for the same graph before."""
    # The processor's list of instructions is enough: no program is built to try each.
    with fresh_cache(), torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        yield


def pointwise(x, y):
    z = torch.where(x > y, x.sin() * y.cos(), torch.exp(-x.abs())) + x.to(torch.int32) // 3
    return z, (z.sigmoid() * 2).to(torch.bfloat16), F.gelu(x) + F.silu(y), x.isfinite() & (y > 0)


def reductions(x, y):
    return (
        x.sum(),
        x.mean(0),
        x.amax(1, keepdim=True),
        x.t().argmax(0),
        x.argmin(),
        (x * y).var(1),
        torch.linalg.vector_norm(x, dim=0),
        (x > 0).any(1),
        x.cumsum(1),
        x.prod(0),
        y.softmax(-1),
        torch.std_mean(y, 0),
        x.double().sum(1),
        x.logsumexp(1),
    )


def shapes(x, y):
    both = torch.cat([x, y.flip(0)], 1)
    return (
        both[:, ::2],
        both.t().reshape(-1)[3:20],
        torch.stack([x, y]).permute(2, 0, 1),
        F.pad(x, (1, 2, 0, 1)),
        x.unfold(1, 3, 2),
        x.expand(2, *x.shape).contiguous(),
        torch.roll(x, 2, 1) + torch.arange(x.shape[1], device=x.device),
        x.triu(),
        torch.tensor(2.5, device=x.device) * y,
        x.split(2, 0)[1],
    )


def indexing(x, y):
    index = torch.tensor([2, 0, 1, 1], device=x.device)
    table = x.clone()
    table[index] = y[:4]
    table.index_add_(0, index, y[:4])
    return (
        table,
        x[index],
        x.gather(1, index.unsqueeze(0).expand(4, 4)),
        torch.zeros_like(x).scatter_add(0, index.unsqueeze(1).expand(4, x.shape[1]), y[:4]),
        F.embedding(index, x),
        x.topk(2, 1).values,
        x.sort(1).indices,
        x.masked_fill(x > 0, -1),
        torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)),
    )


def products(x, y):
    return x @ y.t(), F.linear(x, y).relu(), torch.bmm(x[None], y.t()[None]) + 1, x[0] @ y[0]


def images(x, y):
    image = x.reshape(1, 1, *x.shape)
    return (
        F.conv2d(image, y[:3, :3].reshape(1, 1, 3, 3), padding=1).relu(),
        F.max_pool2d(image, 2),
        F.avg_pool2d(image, 2),
        F.interpolate(image, scale_factor=2.0, mode="bilinear"),
        F.layer_norm(x, x.shape[-1:]),
        F.group_norm(image.expand(1, 4, *x.shape), 2),
        F.scaled_dot_product_attention(image, image, image),
    )


@pytest.mark.parametrize(
    "function",
    [pointwise, reductions, shapes, indexing, products, images],
    ids=lambda f: f.__name__,
)
def test_results_equal_eager_on_cpu(function, close):
    x, y = torch.randn(6, 10), torch.randn(6, 10)
    expected = function(x, y)
    result = torch.compile(function, fullgraph=True)(x.to("npu"), y.to("npu"))
    assert all(tensor.device.type == "npu" for tensor in torch.utils._pytree.tree_leaves(result))
    close(result, expected, 2e-5)


def test_loops_are_fused_and_run_on_host_views():
    def function(x):
        return (x.sin() + 1).sum(1) * 2

    x = torch.randn(8, 8, device="npu")
    _, (code,) = run_and_get_code(torch.compile(function), x)
    assert code.count("on_host(cpp_fused") == 1


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.long)])
def test_forward_and_backward_follow_cpu(dynamic, close):
    plain = nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(144, 5),
    )
    model = copy.deepcopy(plain).to("npu")
    fast = torch.compile(model, dynamic=dynamic)
    for batch in (3, 4):
        x = torch.randn(batch, 2, 8, 8)
        target = torch.randint(0, 5, (batch,))
        for net, device in ((plain, "cpu"), (fast, "npu")):
            F.cross_entropy(net(x.to(device)), target.to(device)).backward()
    for left, right in zip(model.parameters(), plain.parameters(), strict=True):
        close(left.grad, right.grad, 1e-4)
    close(model[1].running_var, plain[1].running_var, 1e-5)


@pytest.mark.long
def test_convolutions_that_inductor_lays_out_channels_last(close):
    plain = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3))
    model = torch.compile(copy.deepcopy(plain).to("npu"))
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        close(model(x.to("npu")), plain(x), 1e-5)
        last = x.to(memory_format=torch.channels_last)
        close(model(last.to("npu")), plain(x), 1e-5)


def test_dynamic_sizes_take_one_graph(close):
    def function(x):
        return torch.cat([x, x.mean(0, keepdim=True)]).softmax(0) * x.shape[0]

    counter = CompileCounterWithBackend("inductor")
    fast = torch.compile(function, backend=counter, dynamic=True)
    for length in (3, 5, 17):
        x = torch.randn(length, 4)
        close(fast(x.to("npu")), function(x))
    assert counter.frame_count == 1


def test_inputs_are_written_in_place(close):
    def function(x, y):
        x.add_(y)
        y[1:].mul_(2)
        return x.view(-1).relu_()

    given = torch.randn(4, 4), torch.randn(4, 4)
    moved = tuple(tensor.to("npu") for tensor in given)
    result = torch.compile(function)(*moved)
    close((result, *moved), (function(*given), *given))
    assert result.data_ptr() == moved[0].data_ptr()


def test_dropout_keeps_the_share_and_follows_the_seed():
    def function(x):
        return F.dropout(x, 0.25)

    fast = torch.compile(function)
    x = torch.ones(100, 100, device="npu")
    torch.manual_seed(3)
    first, other = fast(x), fast(x)
    torch.manual_seed(3)
    assert torch.equal(fast(x), first)
    assert not torch.equal(first, other)
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.02
    assert first.unique().tolist() == pytest.approx([0.0, 4 / 3])


def test_dropout_has_the_gradient_of_its_own_mask():
    x = torch.ones(64, 64, device="npu", requires_grad=True)
    result = torch.compile(lambda t: F.dropout(t, 0.5))(x)
    result.sum().backward()
    assert torch.equal(x.grad, result.detach())


def test_results_of_the_devices_queue_are_waited_for(close):
    product = torch.compile(lambda x: x @ x, backend="npu")
    after = torch.compile(lambda x: x + 1)
    x = torch.randn(256, 256)
    moved = x.to("npu")
    stream = torch.npu.Stream()
    with torch.no_grad(), torch.npu.stream(stream):
        result = after(product(moved))
    close(result, x @ x + 1, 1e-4)


def test_cpu_scalar_and_npu_tensor_meet(close):
    scale = torch.tensor(3.0)
    x = torch.randn(4, 4)
    close(torch.compile(lambda t, s: t.cos() * s)(x.to("npu"), scale), x.cos() * scale)


def test_code_for_cpu_stays_what_it_is():
    _, (code,) = run_and_get_code(torch.compile(lambda x: (x + 1).sum(0)), torch.randn(8, 8))
    assert "on_host" not in code


def test_cond_runs_its_branch(close):
    def function(x):
        return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos() - 1, (x,))

    fast = torch.compile(function)
    for x in (torch.ones(4, 4), -torch.ones(4, 4)):
        close(fast(x.to("npu")), function(x))


@pytest.mark.long
def test_flex_attention_and_its_gradients_equal_attention_written_out(close):
    mask = create_block_mask(
        lambda b, h, i, j: i >= j, None, None, 32, 32, device="npu", BLOCK_SIZE=16
    )

    def attend(q, k, v, bias):
        return flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j], block_mask=mask
        )

    def written_out(q, k, v, bias):
        causal = bias.masked_fill(torch.ones(32, 32).triu(1).bool(), -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal)

    torch.manual_seed(0)
    drawn = [*(torch.randn(2, 2, 32, 8) for _ in range(3)), torch.randn(32, 32)]

    def with_gradients(function, device):
        leaves = [tensor.to(device).requires_grad_() for tensor in drawn]
        out = function(*leaves)
        out.square().sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    found = with_gradients(torch.compile(attend, fullgraph=True), "npu")
    close(found, with_gradients(written_out, "cpu"), 2e-5)


def test_wrapper_in_cpp_is_refused_by_name():
    fast = torch.compile(lambda x: x + 1, options={"cpp_wrapper": True})
    with pytest.raises(Exception, match=r"\[inductor-wrapper\]") as error:
        fast(torch.randn(4, device="npu"))
    assert isinstance(error.value.inner_exception, CompilerError)

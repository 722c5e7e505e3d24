"""flex_attention on npu against attention written out, on the CPU."""

import math

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

LENGTH, CHANNELS = 64, 16


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


# Eagerly torch warns about its speed.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

CALLS = {"eager": flex_attention, "compiled": torch.compile(flex_attention, backend="aot_eager")}


def drawn(*sizes):
    return [torch.randn(2, 4, size, CHANNELS) for size in sizes]


def farther_is_less(score, batch, head, query, key):
    return score + (key - query) * 0.1 * (head + 1)


def causal(batch, head, query, key):
    return query >= key


def written_out(q, k, v, *, is_modified, is_causal):
    scores = q @ k.transpose(-1, -2) / math.sqrt(CHANNELS)
    own, other = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    if is_modified:
        scores = scores + (other - own) * 0.1 * (torch.arange(4)[:, None, None] + 1)
    if is_causal:
        scores = scores.masked_fill(other > own, -math.inf)
    return scores.softmax(-1) @ v


def with_gradients(attend, tensors, device):
    leaves = [tensor.to(device).requires_grad_() for tensor in tensors]
    out = attend(*leaves)
    out.square().sum().backward()
    return [tensor.detach().cpu() for tensor in (out, *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("way", CALLS)
@pytest.mark.parametrize("is_modified, is_causal", [(False, False), (True, True)])
def test_results_and_gradients_are_those_of_attention_written_out(way, is_modified, is_causal):
    tensors = drawn(LENGTH, LENGTH, LENGTH)
    options = {"score_mod": farther_is_less if is_modified else None}
    if is_causal:
        options["block_mask"] = create_block_mask(
            causal, None, None, LENGTH, LENGTH, device="npu", BLOCK_SIZE=32
        )
    found = with_gradients(lambda q, k, v: CALLS[way](q, k, v, **options), tensors, "npu")
    expected = with_gradients(
        lambda *t: written_out(*t, is_modified=is_modified, is_causal=is_causal), tensors, "cpu"
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", CALLS)
def test_a_bias_that_a_score_mod_reads_gets_its_gradient(way):
    q, k, v = (tensor.npu() for tensor in drawn(LENGTH, LENGTH, LENGTH))
    bias = torch.randn(LENGTH, LENGTH, device="npu", requires_grad=True)
    out = CALLS[way](q, k, v, score_mod=lambda s, b, h, m, n: s + bias[m, n])
    out.square().sum().backward()
    expected = bias.detach().clone().requires_grad_()
    scores = q @ k.transpose(-1, -2) / math.sqrt(CHANNELS) + expected
    (scores.softmax(-1) @ v).square().sum().backward()
    torch.testing.assert_close(bias.grad, expected.grad, atol=1e-5, rtol=1e-5)


def test_a_graph_holds_what_the_attention_consists_of():
    captured = []

    def collect(graph, _inputs):
        captured.append(graph)
        return graph

    attend = torch.compile(
        flex_attention, backend=aot_autograd(fw_compiler=collect), fullgraph=True
    )
    with torch.no_grad():
        attend(*(tensor.npu() for tensor in drawn(LENGTH, LENGTH, LENGTH)))
    (graph,) = captured
    called = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert {target.partition(".")[0] for target in called} == {"aten"}
    assert "aten.bmm.default" in called


def test_autocast_gives_its_dtype_and_exponents_sums_come_along():
    q, k, v = (tensor.npu() for tensor in drawn(LENGTH, LENGTH, LENGTH))
    with torch.autocast("npu", dtype=torch.bfloat16):
        half, more = flex_attention(q, k, v, return_aux=AuxRequest(lse=True))
    assert half.dtype == torch.bfloat16
    scores = q @ k.transpose(-1, -2) / math.sqrt(CHANNELS)
    torch.testing.assert_close(half.float(), scores.softmax(-1) @ v, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(more.lse, scores.logsumexp(-1), atol=2e-2, rtol=2e-2)


def test_heads_that_share_keys_and_fewer_queries_than_keys():
    q, k, v = (tensor.npu() for tensor in drawn(16, LENGTH, LENGTH))
    found = flex_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k[:, :2], v[:, :2], enable_gqa=True
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_other_devices_are_refused_as_before():
    q, k, v = (tensor.to("meta") for tensor in drawn(LENGTH, LENGTH, LENGTH))
    with pytest.raises(ValueError, match="only supported on CUDA"):
        flex_attention(q, k, v)

"""The whole block of sparse attention as a program of its parts, its caches written at the end."""

import pytest
import torch

npu = torch.ops.npu
BATCH, LENGTH, HIDDEN, RANK, HEADS, PLAIN, ROPE, LATENT = 2, 3, 40, 24, 5, 16, 8, 32
INDEX_HEADS, INDEX_WIDTH, PAGE, PAGES = 6, 20, 16, 7
TABLE = torch.tensor([[5, 1], [2, 6]])
HELD = torch.tensor([18, 4])


def layer(*, one_tensor=False):
    torch.manual_seed(0)
    widths = (LATENT, ROPE, INDEX_WIDTH)
    whole = torch.randn(PAGES, PAGE, 1, sum(widths))
    caches = whole.split(widths, -1)
    if not one_tensor:
        caches = [cache.clone() for cache in caches]
    at = HELD[:, None] + torch.arange(LENGTH)
    slots = TABLE.gather(1, at // PAGE) * PAGE + at % PAGE
    slots[1, 2] = -1
    angles = torch.rand(BATCH, LENGTH, ROPE // 2) * 6
    shapes = [
        (BATCH, LENGTH, HIDDEN), (HIDDEN, RANK), (RANK, HEADS * (PLAIN + ROPE)),
        (HEADS, PLAIN, LATENT), (HIDDEN, LATENT + ROPE), (RANK,), (LATENT,),
        (RANK, INDEX_HEADS * INDEX_WIDTH), (HIDDEN, INDEX_WIDTH), (INDEX_WIDTH,), (INDEX_WIDTH,),
        (HIDDEN, INDEX_HEADS),
    ]  # fmt: skip
    parts = [torch.randn(shape) / shape[0] ** 0.5 for shape in shapes]
    return [*parts, angles.cos(), angles.sin(), slots, *caches, TABLE, HELD + LENGTH]


def block(*tensors):
    return npu.sparse_attention(*tensors, 0.2, sparse_count=6) * 2


def results(function, device, **how):
    tensors = [tensor.to(device) for tensor in layer(**how)]
    with torch.no_grad():
        y = function(*tensors)
    return [part.cpu() for part in (y, *tensors[-5:-2])]


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_program_of_the_device_gives_the_result_and_the_written_caches(compiled, device):
    function = compiled(block, fullgraph=True, options={"target": "openvino"})
    torch.testing.assert_close(
        results(function, device), results(block, device), rtol=1e-4, atol=1e-5
    )
    assert function.programs == 1
    assert function.eager_ops == []


def test_the_block_stays_one_call_where_the_host_does_the_arithmetic(compiled, monkeypatch, on_npu):
    monkeypatch.delenv("NPU_COMPILE_TARGET")
    function = compiled(block, fullgraph=True)
    torch.testing.assert_close(results(function, "npu"), results(block, "npu"))
    assert ("npu.sparse_attention.default" in function.eager_ops) is not on_npu


def test_caches_that_are_views_of_one_tensor_keep_the_call(compiled):
    function = compiled(block, fullgraph=True, options={"target": "openvino"})

    def both(function):
        tensors = layer(one_tensor=True)
        with torch.no_grad():
            return [function(*tensors), *tensors[-5:-2]]

    torch.testing.assert_close(both(function), both(block))
    assert function.eager_ops == ["torch.ops.higher_order.auto_functionalized_v2"]

"""Jagged nested tensors in the operations that models apply to batches of unequal lengths."""

import pytest
import torch
from torch.nested import nested_tensor, nested_tensor_from_jagged

ROWS = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3)]


@pytest.fixture
def batch():
    """Two sequences, of lengths 2 and 4 and width 3."""
    return nested_tensor(ROWS, layout=torch.jagged, device="npu", requires_grad=True)


def test_it_is_on_the_device_with_its_parts(batch):
    assert batch.device == batch.values().device == batch.offsets().device == torch.device("npu:0")
    assert batch.offsets().tolist() == [0, 2, 6]
    assert [row.shape[0] for row in batch.unbind()] == [2, 4]
    assert "npu:0" in repr(batch)


def test_it_moves_between_devices(batch):
    assert torch.equal(batch.cpu().values(), torch.cat(ROWS))
    host = nested_tensor(ROWS, layout=torch.jagged)
    there = host.to("npu")
    assert there.device == torch.device("npu:0")
    assert torch.equal(there.values().cpu(), host.values())


def test_it_pads_and_takes_from_padded(batch):
    padded = torch.nested.to_padded_tensor(batch, -1.0)
    assert padded.shape == (2, 4, 3)
    assert padded[0, 2:].unique().tolist() == [-1]


def test_a_layer_runs_on_it_and_gives_gradients(batch):
    layer = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
    twin = layer.to("npu")
    out = twin(batch)
    expected = twin(torch.cat(ROWS).to("npu"))
    torch.testing.assert_close(out.values(), expected)
    out.values().sum().backward()
    assert batch.grad.shape == batch.shape
    assert twin[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
def test_it_reduces_over_its_ragged_dimension(batch, name):
    found = getattr(torch, name)(batch, dim=1)
    expected = torch.stack([getattr(torch, name)(row, dim=0) for row in ROWS])
    torch.testing.assert_close(found.cpu(), expected)


def test_softmax_dropout_and_arithmetic(batch):
    softened = torch.softmax(batch, dim=-1)
    torch.testing.assert_close(softened.values().cpu(), torch.softmax(torch.cat(ROWS), dim=-1))
    assert torch.nn.functional.dropout(batch, 0.5).device == torch.device("npu:0")
    torch.testing.assert_close((batch * 2 + batch).values().cpu(), torch.cat(ROWS) * 3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_attention_over_it_equals_attention_row_by_row():
    values = torch.randn(6, 2, 4)
    offsets = torch.tensor([0, 2, 6])
    buffer = values.to("npu").requires_grad_()
    there = nested_tensor_from_jagged(buffer, offsets.to("npu")).transpose(1, 2)
    out = torch.nn.functional.scaled_dot_product_attention(there, there, there)
    assert out.device == torch.device("npu:0")
    host = values.clone().requires_grad_()
    rows = []
    for start, end in ((0, 2), (2, 6)):
        part = host[start:end].transpose(0, 1)
        rows.append(torch.nn.functional.scaled_dot_product_attention(part, part, part))
    expected = torch.cat([row.transpose(0, 1) for row in rows])
    torch.testing.assert_close(out.transpose(1, 2).values().cpu(), expected)
    out.transpose(1, 2).values().square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(buffer.grad.cpu(), host.grad)


def test_lengths_leave_holes_out():
    there = nested_tensor_from_jagged(
        torch.arange(6.0, device="npu"),
        offsets=torch.tensor([0, 3, 6], device="npu"),
        lengths=torch.tensor([2, 3], device="npu"),
    )
    assert [row.tolist() for row in there.unbind()] == [[0, 1], [3, 4, 5]]


def test_an_embedding_bag_of_unequal_bags():
    bag = torch.nn.EmbeddingBag(10, 3).to("npu")
    offsets = torch.tensor([0, 2], device="npu")
    out = bag(torch.tensor([1, 2, 4], device="npu"), offsets)
    expected = torch.stack([bag.weight[[1, 2]].mean(dim=0), bag.weight[4]])
    torch.testing.assert_close(out, expected)

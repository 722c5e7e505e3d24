import copy

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda layer: layer.__name__)
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}],
    ids=["plain", "deep", "no bias"],
)
def test_forward_and_backward_equal_the_cpu(layer, options):
    torch.manual_seed(0)
    host = layer(5, 7, batch_first=True, **options)
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(3, 6, 5, requires_grad=True)
    y = x.detach().to("npu").requires_grad_()
    expected, expected_state = host(x)
    got, got_state = there(y)
    torch.testing.assert_close(got.cpu(), expected)
    torch.testing.assert_close(
        [part.cpu() for part in torch.utils._pytree.tree_leaves(got_state)],
        torch.utils._pytree.tree_leaves(expected_state),
    )
    expected.square().sum().backward()
    got.square().sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)
    for theirs, ours in zip(host.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize(
    "cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell], ids=lambda cell: cell.__name__
)
def test_cells_equal_the_cpu(cell):
    torch.manual_seed(0)
    host = cell(4, 6)
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(3, 4)
    leaves = torch.utils._pytree.tree_leaves
    expected, got = leaves(host(x)), leaves(there(x.to("npu")))
    torch.testing.assert_close([part.cpu() for part in got], expected)
    sum(part.sum() for part in expected).backward()
    sum(part.sum() for part in got).backward()
    for theirs, ours in zip(host.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_gradient_of_the_cell_state_alone():
    torch.manual_seed(0)
    host = nn.LSTMCell(4, 6)
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(3, 4)
    host(x)[1].square().sum().backward()
    there(x.to("npu"))[1].square().sum().backward()
    for theirs, ours in zip(host.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_packed_sequences():
    torch.manual_seed(0)
    host = nn.LSTM(5, 7, batch_first=True)
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(3, 6, 5)
    packed = nn.utils.rnn.pack_padded_sequence(x, [6, 4, 2], batch_first=True)
    there_packed = nn.utils.rnn.pack_padded_sequence(x.to("npu"), [6, 4, 2], batch_first=True)
    expected, got = host(packed)[0], there(there_packed)[0]
    assert got.batch_sizes.device.type == "cpu"
    torch.testing.assert_close(got.data.cpu(), expected.data)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(got, batch_first=True)
    assert padded.device.type == "npu"
    assert lengths.tolist() == [6, 4, 2]


def test_gates_that_no_cell_has_are_refused():
    gates, state = torch.ones(2, 4, device="npu"), torch.ones(2, 2, device="npu")
    with pytest.raises(RuntimeError, match=r"3 \* hidden.*\[cell-shape\]"):
        torch.ops.aten._thnn_fused_gru_cell(gates, gates, state)
    with pytest.raises(RuntimeError, match=r"on cpu.*\[device-mix\]"):
        torch.ops.aten._thnn_fused_gru_cell(gates.cpu(), gates, state)

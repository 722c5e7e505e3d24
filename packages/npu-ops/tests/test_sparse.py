import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")


def matrix():
    return torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])


def test_coo_round_trip_and_accessors():
    there = matrix().to("npu").to_sparse()
    assert there.device.type == "npu"
    assert there.layout == torch.sparse_coo
    assert there.is_coalesced()
    assert (there._nnz(), there.sparse_dim(), there.dense_dim()) == (3, 2, 0)
    assert there.indices().device.type == there.values().device.type == "npu"
    assert torch.equal(there.to_dense().cpu(), matrix())


def test_coo_made_from_npu_members_shares_them():
    values = torch.tensor([1.0, 2.0], device="npu")
    indices = torch.tensor([[0, 1], [1, 0]], device="npu")
    there = torch.sparse_coo_tensor(indices, values, (2, 2), check_invariants=True)
    assert there._values().data_ptr() == values.data_ptr()
    values.mul_(10)
    assert there.to_dense().tolist() == [[0.0, 10.0], [20.0, 0.0]]


def test_coo_arithmetic_in_place_and_products():
    there = matrix().to("npu").to_sparse()
    assert torch.equal((there + there).to_dense().cpu(), 2 * matrix())
    assert torch.equal((there @ torch.eye(3, device="npu")).cpu(), matrix())
    there.mul_(3)
    assert torch.equal(there.to_dense().cpu(), 3 * matrix())
    there.add_(there.clone())
    assert torch.equal(there.to_dense().cpu(), 6 * matrix())
    there.zero_()
    assert there._nnz() == 0


def test_coo_moves_between_devices_and_prints():
    host = matrix().to_sparse()
    there = host.to("npu")
    assert there.device.type == "npu"
    assert torch.equal(there.cpu().to_dense(), matrix())
    assert "device='npu:0'" in repr(there)


def test_coo_gradients():
    host = matrix().to_sparse().requires_grad_()
    there = matrix().to("npu").to_sparse().requires_grad_()
    for sparse, eye in ((host, torch.ones(3, 2)), (there, torch.ones(3, 2, device="npu"))):
        torch.sparse.mm(sparse, eye).sum().backward()
    assert torch.equal(there.grad.to_dense().cpu(), host.grad.to_dense())


@pytest.mark.parametrize("convert", ["to_sparse_csr", "to_sparse_csc"])
def test_compressed_round_trip_and_product(convert):
    there = getattr(matrix().to("npu"), convert)()
    assert there.device.type == "npu"
    assert there.values().tolist() == getattr(matrix(), convert)().values().tolist()
    assert torch.equal(there.to_dense().cpu(), matrix())
    assert torch.equal((there @ torch.eye(3, device="npu")).cpu(), matrix())
    assert torch.equal(there.cpu().to_dense(), matrix())
    assert torch.equal(getattr(matrix(), convert)().to("npu").to_dense().cpu(), matrix())


def test_csr_made_from_npu_members():
    parts = [torch.tensor(part, device="npu") for part in ([0, 1, 3], [1, 0, 2], [2.0, 3.0, 4.0])]
    there = torch.sparse_csr_tensor(*parts, size=(2, 3), check_invariants=True)
    assert there.device.type == "npu"
    assert torch.equal(there.to_dense().cpu(), matrix())
    assert "device='npu:0'" in repr(there)


def test_jagged_tensors():
    there = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged, device="npu"
    )
    assert there.device.type == "npu"
    assert (there + 1).sum().item() == 36

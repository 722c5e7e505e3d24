"""Sparse tensors in everyday operations, for every layout, against the CPU."""

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta")

LAYOUTS = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def dense():
    return torch.tensor(
        [[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, -6.0]]
    )


def check(found, expected):
    assert found.device == torch.device("npu:0")
    assert found.layout == expected.layout
    torch.testing.assert_close(found.to_dense().cpu(), expected.to_dense())


@every_layout
@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x * 2,
        lambda x: -x,
        lambda x: x.abs(),
        lambda x: x.sin(),
        lambda x: x.double(),
        lambda x: x.clone(),
        lambda x: x.detach(),
        lambda x: torch.zeros_like(x),
    ],
    ids=["mul", "neg", "abs", "sin", "double", "clone", "detach", "zeros_like"],
)
def test_element_by_element(layout, operation):
    convert = LAYOUTS[layout]
    check(operation(convert(dense().to("npu"))), operation(convert(dense())))


# The CPU has no such product for "bsc", nor with vectors for the ones by column.
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_products_with_vectors_and_matrices(layout):
    host, there = LAYOUTS[layout](dense()), LAYOUTS[layout](dense().to("npu"))
    matrix = torch.randn(4, 3)
    torch.testing.assert_close((there @ matrix.to("npu")).cpu(), host @ matrix)
    if layout != "csc":
        vector = torch.randn(4)
        torch.testing.assert_close((there @ vector.to("npu")).cpu(), host @ vector)


@every_layout
def test_sums(layout):
    there = LAYOUTS[layout](dense().to("npu"))
    assert there.sum().item() == 8


def test_coo_reduces_slices_transposes_and_concatenates():
    host, there = dense().to_sparse(), dense().to("npu").to_sparse()
    check(torch.sparse.sum(there, 0), torch.sparse.sum(host, 0))
    check(there.t(), host.t())
    check(torch.cat([there, there]), torch.cat([host, host]))
    check(
        there.index_select(0, torch.tensor([3, 1], device="npu")),
        host.index_select(0, torch.tensor([3, 1])),
    )
    assert there[1].to_dense().tolist() == [3, 0, 4, 0]
    check(torch.sparse.softmax(there, 1), torch.sparse.softmax(host, 1))


def test_doubled_indices_add_up():
    there = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 1]], device="npu"),
        torch.tensor([1.0, 2.0, 4.0], device="npu"),
        (3,),
        check_invariants=True,
    )
    assert not there.is_coalesced()
    assert there.coalesce().values().tolist() == [3, 4]
    assert there.to_dense().tolist() == [3, 4, 0]


def test_layouts_turn_into_each_other():
    there = dense().to("npu").to_sparse()
    for convert in LAYOUTS.values():
        check(convert(there), convert(dense().to_sparse()))
        check(convert(there).to_sparse(), dense().to_sparse())


def test_an_embedding_gives_sparse_gradients_that_optimizers_take():
    table = torch.nn.Embedding(6, 2, sparse=True).to("npu")
    before = table.weight.detach().clone()
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    table(torch.tensor([1, 4, 1], device="npu")).sum().backward()
    assert table.weight.grad.layout == torch.sparse_coo
    assert table.weight.grad.device == torch.device("npu:0")
    optimizer.step()
    changed = (table.weight != before).any(dim=1)
    assert changed.tolist() == [False, True, False, False, True, False]


@every_layout
def test_saving_and_loading(layout, tmp_path):
    there = LAYOUTS[layout](dense().to("npu"))
    torch.save(there, tmp_path / "sparse.pt")
    loaded = torch.load(tmp_path / "sparse.pt")
    check(loaded, LAYOUTS[layout](dense()))
    on_cpu = torch.load(tmp_path / "sparse.pt", map_location="cpu")
    assert on_cpu.device.type == "cpu"


def test_indices_out_of_range_are_refused():
    with pytest.raises(RuntimeError, match="index"):
        torch.sparse_coo_tensor(
            torch.tensor([[5]], device="npu"),
            torch.tensor([1.0], device="npu"),
            (3,),
            check_invariants=True,
        )

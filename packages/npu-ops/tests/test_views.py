import pytest
import torch

VIEWS = {
    "view": lambda x: x.view(8, 3),
    "reshape": lambda x: x.reshape(2, 12),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[1],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "expand": lambda x: x[:, :1].expand(4, 5, 3),
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "as_strided": lambda x: x.as_strided((2, 2), (6, 1), 1),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "detach": lambda x: x.detach(),
    "chunk": lambda x: x.chunk(2)[1],
    "dtype": lambda x: x.view(torch.int32),
    "flatten": lambda x: x.flatten(),
    "movedim": lambda x: x.movedim(0, 2),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_view_shares_memory_and_has_the_cpu_geometry(view):
    host = torch.arange(24.0).view(4, 2, 3)
    there = host.to("npu")
    expected, got = view(host), view(there)
    assert torch.equal(got.cpu(), expected)
    assert (got.stride(), got.storage_offset()) == (expected.stride(), expected.storage_offset())
    assert got.untyped_storage().data_ptr() == there.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", ["select", "slice", "unfold", "detach"])
def test_write_through_a_view_reaches_the_base(name):
    view = VIEWS[name]
    host = torch.zeros(4, 2, 3)
    there = host.to("npu")
    view(host).add_(1)
    view(there).add_(1)
    assert torch.equal(there.cpu(), host)


def test_a_view_shares_the_version_counter_of_its_base():
    base = torch.zeros(4, device="npu")
    view = base[1:]
    assert view._base is base
    view.add_(1)
    base.mul_(2)
    assert (base._version, view._version) == (2, 2)


def test_real_and_complex_views():
    host = torch.randn(3, dtype=torch.complex64)
    there = host.to("npu")
    assert torch.equal(torch.view_as_real(there).cpu(), torch.view_as_real(host))
    assert torch.equal(torch.view_as_complex(torch.view_as_real(there)).cpu(), host)
    there.imag.zero_()
    assert torch.equal(there.cpu().imag, torch.zeros(3))


def test_conj_is_lazy_and_materialises():
    there = torch.randn(3, dtype=torch.complex64).to("npu")
    lazy = there.conj()
    assert lazy.is_conj()
    assert lazy.data_ptr() == there.data_ptr()
    assert torch.equal(lazy.resolve_conj().cpu(), there.cpu().conj().resolve_conj())


def test_impossible_view_is_an_error():
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        torch.zeros(6, device="npu").view(4)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        torch.zeros(2, 3, device="npu").t().view(6)
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        torch.zeros(4, device="npu").as_strided((3, 3), (3, 1))


def test_inference_mode_views_are_inference_tensors():
    with torch.inference_mode():
        made = torch.zeros(4, device="npu") + 1
        view = made.view(2, 2)
        view.add_(1)
    assert made.is_inference()
    assert view.is_inference()
    assert made.tolist() == [2.0] * 4

"""Function transforms and lazily computed tensors on npu, against the CPU."""

import pytest
import torch
from torch.autograd import forward_ad

# torch scripts its formulas for forward mode, and warns that scripting is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def both(function):
    return function(X.to("npu")), function(X)


def assert_equal(got, expected):
    assert got.device.type == "npu"
    torch.testing.assert_close(got.cpu(), expected)


def test_a_directional_derivative():
    got, expected = both(lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),)))
    for ours, theirs in zip(got, expected, strict=True):
        assert_equal(ours, theirs)


def test_dual_numbers():
    def run(x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual((dual @ dual.T).exp()).tangent

    assert_equal(*both(run))


@pytest.mark.parametrize(
    "function",
    [
        torch.vmap(lambda row: row.softmax(0) @ row),
        torch.vmap(lambda row: torch.outer(row, row), out_dims=1),
        torch.func.vmap(torch.func.grad(lambda row: row.square().sum())),
        torch.func.jacrev(lambda x: x.sin().sum(0)),
        torch.func.jacfwd(lambda x: x.sin().sum(0)),
        torch.func.hessian(lambda x: x.pow(3).sum()),
    ],
    ids=["vmap", "vmap-out-dims", "vmap-grad", "jacrev", "jacfwd", "hessian"],
)
def test_a_transform_equals_the_cpu(function):
    assert_equal(*both(function))


def test_a_lazy_conjugate_and_a_lazy_negative():
    z = torch.complex(X, X.flip(0))
    conj, negative = z.to("npu").conj(), z.to("npu").conj().imag
    assert conj.is_conj()
    assert negative.is_neg()
    assert_equal(conj.resolve_conj(), z.conj().resolve_conj())
    assert_equal(negative.resolve_neg(), -z.imag)
    assert_equal(conj @ conj.mT, z.conj() @ z.conj().mT)
    assert_equal(z.to("npu").conj_physical_(), z.conj())


def test_a_lazy_clone_keeps_its_values_when_either_is_written():
    x = X.to("npu")
    clone = torch._lazy_clone(x)
    assert torch._C._is_cow_tensor(clone)
    clone.add_(1)
    assert_equal(x, X)
    assert_equal(clone, X + 1)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0)])
def test_zero_dim_and_empty(shape):
    x = torch.ones(shape)
    for function in (torch.sum, torch.exp, lambda t: t.reshape(-1), lambda t: t.clone().mul_(2)):
        assert_equal(function(x.to("npu")), function(x))


def test_out_is_resized_and_written_through_strides():
    fresh = torch.empty(0, device="npu")
    assert torch.add(X.to("npu"), 1, out=fresh) is fresh
    assert_equal(fresh, X + 1)
    strided = torch.zeros(3, 2, device="npu").t()
    torch.exp(X.to("npu"), out=strided)
    assert strided.stride() == (1, 2)
    assert_equal(strided, X.exp())

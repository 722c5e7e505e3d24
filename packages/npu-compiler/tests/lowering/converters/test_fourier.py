"""Fourier transforms on pairs against torch's on complex numbers."""

import pytest
import torch

from npu_compiler.graph.fourier_ops import pairs_of_complex, pairs_of_real, real_of_pairs


@pytest.mark.parametrize("dims", [[0], [1], [2], [1, 2], [2, 0], [0, 1, 2]])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_transforms_equal_eager(lowers, dims, scale):
    torch.manual_seed(0)
    x = torch.randn(4, 5, 6)
    lowers(lambda x: pairs_of_real(x, dims, scale), x)
    pairs = torch.randn(4, 5, 6, 2)
    for inverse in (False, True):
        lowers(lambda x: pairs_of_complex(x, dims, inverse, scale), pairs)  # noqa: B023
    size = pairs.shape[dims[-1]]
    for last in (2 * size - 2, 2 * size - 1):
        lowers(lambda x: real_of_pairs(x, dims, last, scale), pairs)  # noqa: B023


def test_ops_are_those_of_torch():
    x = torch.randn(3, 8)
    assert torch.equal(pairs_of_real(x, [1], 1.0), torch.view_as_real(torch.fft.rfft(x)))
    pairs = torch.randn(3, 8, 2)
    value = torch.view_as_complex(pairs)
    expected = torch.view_as_real(torch.fft.ifft(value))
    torch.testing.assert_close(pairs_of_complex(pairs, [1], True, 1 / 8), expected)
    torch.testing.assert_close(real_of_pairs(pairs, [1], 14, 1 / 14), torch.fft.irfft(value))

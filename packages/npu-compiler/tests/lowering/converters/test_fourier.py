"""Fourier transforms on pairs against torch's on complex numbers."""

import pytest
import torch

from npu_compiler.graph.fourier_ops import pairs_of_complex, pairs_of_real, real_of_pairs


@pytest.mark.parametrize(
    "dims, scale", [([0], 1.0), ([1], 0.25), ([2], 1.0), ([1, 2], 0.25), ([2, 0], 1.0),
                    ([0, 1, 2], 0.25)]
)  # fmt: skip
def test_transforms_equal_eager(lowers, dims, scale):
    torch.manual_seed(0)
    real, pairs = torch.randn(4, 5, 6), torch.randn(4, 5, 6, 2)
    size = pairs.shape[dims[-1]]
    transforms = {
        "of real": lambda x, y: pairs_of_real(x, dims, scale),
        "of complex": lambda x, y: pairs_of_complex(y, dims, False, scale),
        "inverse of complex": lambda x, y: pairs_of_complex(y, dims, True, scale),
        "to an even length": lambda x, y: real_of_pairs(y, dims, 2 * size - 2, scale),
        "to an odd length": lambda x, y: real_of_pairs(y, dims, 2 * size - 1, scale),
    }
    lowers(transforms, real, pairs)


def test_ops_are_those_of_torch():
    x = torch.randn(3, 8)
    assert torch.equal(pairs_of_real(x, [1], 1.0), torch.view_as_real(torch.fft.rfft(x)))
    pairs = torch.randn(3, 8, 2)
    value = torch.view_as_complex(pairs)
    expected = torch.view_as_real(torch.fft.ifft(value))
    torch.testing.assert_close(pairs_of_complex(pairs, [1], True, 1 / 8), expected)
    torch.testing.assert_close(real_of_pairs(pairs, [1], 14, 1 / 14), torch.fft.irfft(value))

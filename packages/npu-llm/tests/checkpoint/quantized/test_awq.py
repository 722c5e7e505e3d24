import pytest
import torch

from npu_llm.errors import ModelError

from .conftest import as_words

OUTPUTS, INPUTS, GROUP = 32, 64, 32
CONFIG = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
# Index of the neighbour, of eight, in each nibble of a word, the lowest first.
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def drawn(draw):
    values, zeros = draw(0, 16, OUTPUTS, INPUTS), draw(0, 16, OUTPUTS, INPUTS // GROUP)
    scales = (draw(1, 50, OUTPUTS, INPUTS // GROUP) / 1024).half()
    spread = zeros.repeat_interleave(GROUP, 1), scales.float().repeat_interleave(GROUP, 1)
    return values, zeros, scales, (values - spread[0]) * spread[1]


def shuffled(values):
    """(rows, columns) with each eight columns in AWQ's order."""
    eights = values.reshape(len(values), -1, 8)
    return eights[..., ORDER].reshape(values.shape)


def test_gemm(folder, draw):
    values, zeros, scales, expected = drawn(draw)
    tensors = {
        "a.qweight": as_words(shuffled(values.t()), 4),
        "a.qzeros": as_words(shuffled(zeros.t()), 4),
        "a.scales": scales.t(),
    }
    found, integers = folder.decoded(tensors, CONFIG)
    assert torch.equal(found, expected)
    assert integers.bits == 4


def test_gemv_whose_groups_are_padded(folder, draw):
    values, zeros, scales, expected = drawn(draw)
    padded = torch.zeros(OUTPUTS, 32, dtype=torch.float16)
    padded[:, : scales.shape[1]] = scales
    tensors = {
        "a.qweight": as_words(values, 4),
        "a.qzeros": as_words(torch.nn.functional.pad(zeros, (0, 30)), 4),
        "a.scales": padded,
    }
    found, _ = folder.decoded(tensors, CONFIG | {"version": "gemv"})
    assert torch.equal(found, expected)


def test_other_version_is_an_error(folder, draw):
    tensors = {"a.qweight": as_words(draw(0, 16, 8, 8), 4)}
    with pytest.raises(ModelError, match=r"'gemv_fast' in 4 bits.*\[quantization-form\]"):
        folder.scheme(tensors, CONFIG | {"version": "gemv_fast"})


def test_shapes_that_do_not_fit_are_an_error(folder, draw):
    tensors = {
        "a.qweight": as_words(draw(0, 16, INPUTS, OUTPUTS), 4),
        "a.qzeros": as_words(draw(0, 16, 3, OUTPUTS), 4),
        "a.scales": torch.ones(3, OUTPUTS),
    }
    with pytest.raises(ModelError, match=r"\[quantization-parts\]"):
        folder.scheme(tensors, CONFIG)

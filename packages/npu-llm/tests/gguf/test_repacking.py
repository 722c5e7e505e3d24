import gguf
import numpy as np
import pytest

from npu_llm.checkpoint import facts
from npu_llm.gguf.repacking import REPACKED, repack

# Offset of a block's float16 scale; None for one that is spread over four words.
SCALES = dict.fromkeys(REPACKED, 0) | {"TQ1_0": 52, "TQ2_0": 64, "IQ1_M": None}


def random_rows(kind):
    """Three rows of two random blocks with scales from -2 to 2."""
    generator = np.random.default_rng(0)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = generator.integers(0, 256, (6, size), np.uint8)
    scales = generator.uniform(-2, 2, (6, 1)).astype(np.float16)
    place = SCALES[kind]
    if place is None:
        words = blocks[:, 48:].view(np.uint16)
        quarters = scales.view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
        words[:] = words & 0xFFF | quarters << 12
    else:
        blocks[:, place : place + 2] = scales.view(np.uint8)
    if kind == "TQ2_0":
        blocks[:, :64] &= 0x55  # two bits of 3 stand for no level
    return blocks.reshape(3, -1)


@pytest.mark.parametrize("kind", REPACKED)
def test_repacked_blocks_have_the_same_values(kind):
    rows = random_rows(kind)
    found = repack(kind, rows)
    values = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
    again = gguf.dequantize(found.rows, gguf.GGMLQuantizationType[found.type])
    assert found.type == REPACKED[kind]
    off = np.linalg.norm(again - values) / np.linalg.norm(values)
    assert found.loss == pytest.approx(off, abs=1e-9)
    assert (0.001 < off < 0.02) if kind.startswith("IQ2") else np.array_equal(again, values)


def test_blocks_of_zeros_stay_zeros():
    for kind in ("TQ1_0", "IQ2_S", "IQ3_S"):
        found = repack(kind, np.zeros_like(random_rows(kind)))
        again = gguf.dequantize(found.rows, gguf.GGMLQuantizationType[found.type])
        assert not again.any()
        assert found.loss == 0


def test_sizes_of_repacked_types_are_known_without_gguf():
    bits = {
        kind: 8 * size / elements
        for kind, becomes in REPACKED.items()
        for elements, size in [gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[becomes]]]
    }
    assert bits == facts._BITS_OF_REPACKED

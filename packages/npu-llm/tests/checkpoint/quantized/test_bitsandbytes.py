import json

import pytest
import torch

from npu_llm.errors import ModelError

CONFIG = {"quant_method": "bitsandbytes"}


def test_8_bits(folder, draw):
    stored = draw(-127, 128, 16, 32).to(torch.int8)
    scb = torch.rand(16, generator=torch.Generator().manual_seed(0)) + 0.1
    tensors = {
        "a.weight": stored,
        "a.SCB": scb,
        "a.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    values, integers = folder.decoded(tensors, CONFIG)
    torch.testing.assert_close(values, stored.float() * scb[:, None] / 127, rtol=1e-6, atol=0)
    assert integers.bits == 8


def test_8_bits_tiled_for_a_gpu_are_an_error(folder, draw):
    tensors = {
        "a.weight": draw(-127, 128, 16, 32).to(torch.int8),
        "a.SCB": torch.ones(16),
        "a.weight_format": torch.tensor(2, dtype=torch.uint8),
    }
    with pytest.raises(ModelError, match=r"\[quantization-form\]"):
        folder.decoded(tensors, CONFIG)


@pytest.mark.parametrize("is_nested", [False, True])
def test_4_bits_by_a_table(folder, draw, is_nested):
    shape, block, nested_block = (6, 32), 16, 8
    codes = draw(0, 16, *shape)
    table = torch.linspace(-1, 1, 16) ** 3
    blocks = codes.numel() // block
    scales = torch.rand(blocks, generator=torch.Generator().manual_seed(0))
    pairs = codes.reshape(-1, 2)
    about = {"quant_type": "nf4", "blocksize": block, "dtype": "float16", "shape": list(shape)}
    tensors = {
        "a.weight": (pairs[:, 0] * 16 + pairs[:, 1]).to(torch.uint8)[:, None],
        "a.weight.quant_map": table,
        "a.weight.absmax": scales,
    }
    if is_nested:
        inner_codes = draw(0, 256, blocks)
        inner_table = torch.linspace(-1, 1, 256)
        inner = torch.rand(-(-blocks // nested_block)) + 0.5
        about |= {
            "nested_blocksize": nested_block,
            "nested_offset": 0.25,
            "nested_dtype": "float32",
        }
        tensors |= {
            "a.weight.absmax": inner_codes.to(torch.uint8),
            "a.weight.nested_absmax": inner,
            "a.weight.nested_quant_map": inner_table,
        }
        scales = torch.tensor(
            [
                inner_table[code] * inner[at // nested_block] + 0.25
                for at, code in enumerate(inner_codes)
            ]
        )
    tensors["a.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(about).encode()), dtype=torch.uint8
    )
    expected = [table[code] * scales[at // block] for at, code in enumerate(codes.flatten())]
    values, _ = folder.decoded(tensors, CONFIG)
    torch.testing.assert_close(values, torch.tensor(expected).view(shape))


def test_shapes_that_do_not_fit_are_an_error(folder):
    with pytest.raises(ModelError, match=r"\[quantization-parts\]"):
        folder.scheme(
            {"a.weight": torch.zeros(4, 8, dtype=torch.int8), "a.SCB": torch.ones(3)}, CONFIG
        )

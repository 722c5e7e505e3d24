"""Values of half precision that are read in a wider type: rounded, infinite beyond float16."""

from __future__ import annotations

import math

import pytest
import torch

SPECIAL = torch.tensor(
    [7e4, -7e4, 65519.0, 65520.0, 1.0001, 1e-7, 3e-8, 2e-8, 1 + 2**-11, 1 + 3 * 2**-11,
     math.inf, math.nan, 1e38, 0.0, -0.0, 3.1]
)  # fmt: skip
CASTS = {
    "float16": lambda x: x.half().float() + 0.0,
    "float16 moved": lambda x: x.half().view(4, 4).t().float() * 1,
    "bfloat16": lambda x: x.bfloat16().float() + 0.0,
    "rest of bfloat16": lambda x: x - x.bfloat16().float(),
    "rest of float16": lambda x: x - x.half().float(),
    "bfloat16 to float16": lambda x: x.bfloat16().half().float() * 1,
    "float16 to bfloat16": lambda x: x.half().bfloat16().float() * 1,
    "promoted": lambda x: x.half() * torch.ones(16),
    "compared": lambda x: (x.half() == x) * 1.0,
    "infinite": lambda x: x.half().isinf() * 1.0,
    "int8": lambda x: x.clamp(-1e3, 1e3).nan_to_num(0).to(torch.int8).float() * 1,
}
LARGE = torch.tensor([3e4, 4.5e4, -3.5e4, 3e4]).half()
ARITHMETIC = {
    "sum": lambda x: x.sum().float(),
    "product": lambda x: (x * 2).float(),
    "matrix product": lambda x: (x.view(2, 2) @ x.view(2, 2)).float(),
    "infinite": lambda x: (x * 2).isinf(),
    "compared": lambda x: (x + x) == math.inf,
    "prod": lambda x: x.prod().float(),
    "cumulative": lambda x: (x[:2].cumsum(0)).float(),
}


@pytest.mark.parametrize("name", CASTS)
def test_cast_down_and_up_rounds_on_every_call(compiled, name):
    function = CASTS[name]
    fast = compiled(function, options={"verify": "off"})
    with torch.no_grad():
        for x in (torch.ones(16), SPECIAL):
            torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_float16_overflows_before_it_is_widened(compiled, name):
    function = ARITHMETIC[name]
    fast = compiled(function, options={"verify": "off", "target": "openvino"})
    with torch.no_grad():
        for x in (torch.ones(4).half(), LARGE):
            torch.testing.assert_close(fast(x), function(x), rtol=2e-3, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_a_frozen_tensor_overflows_in_a_cast_to_float16(compiled, dtype):
    numbers = torch.tensor([2**31 - 8, -(2**31), 65519, 65520, 3], dtype=dtype)

    def function(x):
        return numbers.half(), -numbers.view(5).half() + x

    x = torch.zeros(5).half()
    with torch.no_grad():
        found = compiled(function, options={"verify": "off", "target": "openvino"})(x)
        torch.testing.assert_close(found, function(x), rtol=0, atol=0)

"""quantized_linear around the numbers of rows at which its kernel takes another road."""

import pytest
import torch

from npu_ops.fused import quantized_linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 13, 14])
def test_few_and_many_rows_agree_with_float64(rows: int, bits: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 72, generator=generator).to(dtype)
    integers = torch.randint(0, 2**bits, (11, 72), generator=generator)
    packed = bits == 4
    weight = quantized_linear.pack_int4(integers) if packed else integers.to(torch.uint8)
    zero = torch.randint(0, 2**bits, (11, 4), generator=generator).to(torch.uint8)
    scale = torch.rand(11, 4, generator=generator) / 2**bits
    groups = integers.view(11, 4, 18) - zero[..., None].long()
    exact = x.double() @ (groups * scale[..., None].double()).view(11, 72).t()
    given = [tensor.to("npu") for tensor in (x, weight, scale, zero)]
    got = torch.ops.npu.quantized_linear(*given, bits=bits)
    assert got.dtype == dtype
    share = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    assert float((got.cpu().double() - exact).abs().max()) <= share * float(exact.abs().max())

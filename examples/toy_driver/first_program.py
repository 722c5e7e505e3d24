"""A program in the toy chip's own format, on npu tensors; run it with NPU_DRIVER=toy.

tests/test_toy_driver.py runs it, and docs/guides/writing-a-driver.md shows it.
"""

# --8<-- [start:program]
import struct

import torch

import npu_runtime

TEXT = b"""
input x 2x3
input w 3x2
weights half 1
product = matmul x w
y = mul product half
output y
"""

program = npu_runtime.load_program(
    TEXT,
    struct.pack("<f", 0.5),
    name="half_a_product",
    options={"INFERENCE_PRECISION_HINT": "f32"},
)
x = torch.arange(6.0).reshape(2, 3).to("npu")
(y,) = program.run([x, x.t().contiguous()])
print(program.device, y.cpu().tolist())
# --8<-- [end:program]

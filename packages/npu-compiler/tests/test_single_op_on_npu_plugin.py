"""Models of single ops in OpenVINO's NPU plugin, which compiles them for the CPU here.

It shows that the plugin for NPUs accepts them; the verdict of an NPU's compiler needs an NPU.
"""

import pytest
import torch

from npu_compiler.openvino_core import openvino_core
from npu_compiler.single_op import lower_op
from npu_ops.variants.call import parse_call

# The plugin's path for machines without an NPU. One op is not cut into parts: with cutting on, the
# plugin of OpenVINO 2026.4.1 hands float16 memory to parts that read float32, and norms come out
# wrong.
OPTIONS = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}

CONVOLUTION = ["stride=[1,1]", "padding=[1,1]", "dilation=[1,1]", "output_padding=[0,0]"]
CALLS = {
    "mm": ["aten.mm", "16x8xf32", "8x4xf32"],
    "mm of a transposed matrix": ["aten.mm", "16x8xf32", "8x4xf32@1.0"],
    "bmm": ["aten.bmm", "2x6x7xf32", "2x7x3xf32"],
    "addmm": ["aten.addmm", "4xf32", "3x8xf32", "8x4xf32"],
    "convolution": [
        *["aten.convolution", "1x8x9x9xf32", "4x8x3x3xf32", *CONVOLUTION],
        *["transposed=false", "groups=1"],
    ],
    "transposed convolution": [
        *["aten.convolution", "1x4x9x9xf32", "4x8x3x3xf32", *CONVOLUTION],
        *["transposed=true", "groups=1"],
    ],
    "gradients of a convolution": [
        *["aten.convolution_backward", "1x4x9x9xf32", "1x8x9x9xf32", "4x8x3x3xf32", *CONVOLUTION],
        *["bias_sizes=[4]", "transposed=false", "groups=1", "output_mask=[true,true,true]"],
    ],
    "attention": ["aten._scaled_dot_product_flash_attention_for_cpu", "1x2x8x16xf32"],
    "layer_norm": [
        *["aten.native_layer_norm", "4x8xf32", "8xf32", "8xf32"],
        *["normalized_shape=[8]", "eps=1e-5"],
    ],
    "rms_norm": ["aten._fused_rms_norm", "4x8xf32", "8xf32", "normalized_shape=[8]", "eps=1e-5"],
    "softmax": ["aten._softmax", "4x9xf32", "dim=1", "half_to_float=false"],
    "gelu": ["aten.gelu", "4x9xf32"],
    "silu": ["aten.silu", "4x9xf32"],
    # Forms that keep NaN.
    "relu": ["aten.relu", "4x9xf32"],
    "maximum": ["aten.maximum", "4x9xf32", "4x9xf32"],
    "amax": ["aten.amax", "4x9xf32", "dim=[1]"],
    "max": ["aten.max.dim", "4x9xf32", "dim=1"],
    "max_pool": ["aten.max_pool2d_with_indices", "1x2x8x8xf32", "kernel_size=[2,2]"],
    "interpolate": ["aten.upsample_nearest2d", "1x2x4x4xf32", "output_size=[8,8]"],
}


@pytest.mark.parametrize("name", CALLS)
def test_the_npu_plugin_compiles_and_runs_it(name: str) -> None:
    op, *texts = CALLS[name]
    call = parse_call(op, texts)
    lowered = lower_op(call)
    compiled = openvino_core().compile_model(lowered.model, "NPU", OPTIONS)
    generator = torch.Generator().manual_seed(3)
    arguments = [
        torch.empty_strided(value.shape, value.strides).normal_(generator=generator)
        if value in call.tensors
        else value
        for value in call.arguments
    ]
    inputs = [
        arguments[position].permute(call.arguments[position].order).contiguous().numpy()
        if call.arguments[position].order
        else arguments[position].numpy()
        for position in lowered.inputs
    ]
    outputs = compiled(inputs)
    expected = call.invoke(arguments)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    compared = 0
    for result, output in zip(expected, lowered.results, strict=True):
        if output < 0:
            continue
        order = lowered.output_orders[output]
        got = torch.from_numpy(outputs[output])
        got = got.permute(order) if order else got
        # The plugin chooses bfloat16 on this processor.
        scale = max(1.0, float(result.abs().max()))
        assert float((got.double() - result.double()).abs().max()) <= 3e-2 * scale
        compared += 1
    assert compared

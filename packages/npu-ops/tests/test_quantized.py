import pytest
import torch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*quantiz.*:UserWarning", "ignore:.*quantiz.*:DeprecationWarning"
)


def test_quantize_and_dequantize_stay_on_the_device():
    x = torch.tensor([-1.0, 0.04, 0.5], device="npu")
    quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    assert quantized.device.type == "npu"
    assert quantized.int_repr().tolist() == [-10, 0, 5]
    torch.testing.assert_close(quantized.dequantize().cpu(), torch.tensor([-1.0, 0.0, 0.5]))
    assert "device='npu:0'" in repr(quantized)


def test_dynamically_quantized_layer_equals_the_cpu():
    torch.manual_seed(0)
    layer = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    x = torch.randn(2, 4)
    got = layer(x.to("npu"))
    assert got.device.type == "npu"
    assert torch.equal(got.cpu(), layer(x))

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


def quantized(values, dtype=torch.qint8):
    return torch.quantize_per_tensor(torch.tensor(values), 0.1, 3, dtype)


@pytest.mark.parametrize("values", [[0.5, -1.0], [[0.5], [1.0]], [], 0.5])
def test_a_quantized_tensor_moves_both_ways(values):
    there = quantized(values).to("npu")
    assert (there.device.type, there.is_quantized) == ("npu", True)
    assert torch.equal(there.cpu().int_repr(), quantized(values).int_repr())


def test_a_copy_between_quantized_tensors_takes_the_scale_along():
    there = torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8).to("npu")
    there.copy_(quantized([0.5, -1.0]))
    assert (there.q_scale(), there.q_zero_point()) == (0.1, 3)
    torch.testing.assert_close(there.dequantize().cpu(), torch.tensor([0.5, -1.0]))


def test_a_view_of_a_quantized_tensor_is_quantized():
    there = quantized([[0.5, -1.0], [2.0, 3.0]]).to("npu")
    for view in (there.view(4), there[1], there.t(), torch.ops.aten.view_copy(there, [4])):
        assert view.q_scale() == 0.1
        assert view.device.type == "npu"
    assert there.t().dequantize().cpu().tolist()[0] == pytest.approx([0.5, 2.0])


def test_a_part_of_a_quantized_tensor_moves_to_the_cpu():
    part = quantized([[0.5, -1.0], [2.0, 3.0]]).to("npu").narrow(1, 1, 1)
    assert part.cpu().device.type == "cpu"
    torch.testing.assert_close(part.cpu().dequantize(), torch.tensor([[-1.0], [3.0]]))


def test_a_quantized_tensor_takes_another_storage():
    there = quantized([0.5, -1.0]).to("npu")
    there.set_(quantized([2.0, 3.0]).to("npu").untyped_storage(), 0, (2,), (1,))
    torch.testing.assert_close(there.dequantize().cpu(), torch.tensor([2.0, 3.0]))


def test_per_channel_quantization_equals_the_cpu():
    def run(device):
        scales = torch.tensor([0.1, 0.5], device=device)
        zeros = torch.zeros(2, dtype=torch.int64, device=device)
        x = torch.tensor([[0.5, -1.0], [2.0, 3.0]], device=device)
        return torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)

    assert torch.equal(run("npu").int_repr().cpu(), run("cpu").int_repr())
    torch.testing.assert_close(run("npu").dequantize().cpu(), run("cpu").dequantize())


def test_a_quantized_tensor_seen_as_another_dtype_is_refused():
    with pytest.raises(RuntimeError, match=r"must not be viewed.*\[alias-layout\]"):
        quantized([0.5, -1.0]).to("npu").view(torch.bool).clone()

import pytest
import torch

from npu_llm.adapters.adapter_ports import SCALES, adapted, idle_inputs, port_names, port_sizes
from npu_llm.errors import CaptureError, ModelError

Q0 = "model.layers.0.self_attn.q_proj"
K1 = "model.layers.1.self_attn.k_proj"


def test_inputs_are_named_after_modules():
    assert port_names([Q0]) == (SCALES, f"adapter.{Q0}.a", f"adapter.{Q0}.b")
    assert port_names([]) == ()


def test_layers_add_what_the_inputs_say(llama):
    model = llama.reference
    sizes = port_sizes(model, [K1])
    assert sizes == {K1: (32, 16)}
    first, second = torch.randn(2, 32), torch.randn(16, 2)
    scales = torch.tensor([[0.5, 2.0], [0.0, 0.0]])
    inputs = {SCALES: scales, f"adapter.{K1}.a": first, f"adapter.{K1}.b": second}
    layer, x = model.get_submodule(K1), torch.randn(2, 5, 32)
    with torch.no_grad():
        before = layer(x)
        with adapted(model, [K1], inputs):
            got = layer(x)
        assert torch.equal(layer(x), before)
    expected = before[0] + x[0] @ first.T @ torch.diag(scales[0]) @ second.T
    torch.testing.assert_close(got[0], expected)
    torch.testing.assert_close(got[1], before[1])


def test_gpt2s_own_layers_count_as_linear(tiny):
    name = "transformer.h.0.attn.c_attn"
    assert port_sizes(tiny("gpt2").reference, [name]) == {name: (32, 96)}


def test_idle_inputs_change_nothing(llama):
    values = idle_inputs({K1: (32, 16)})
    assert {name: tuple(one.shape) for name, one in values.items()} == {
        SCALES: (1, 1), f"adapter.{K1}.a": (1, 32), f"adapter.{K1}.b": (16, 1),
    }  # fmt: skip
    assert not any(one.any() for one in values.values())
    assert idle_inputs({}) == {}


def test_a_layer_that_is_not_linear_is_refused(llama):
    with pytest.raises(CaptureError, match="got LlamaRMSNorm") as caught:
        port_sizes(llama.reference, ["model.norm"])
    assert caught.value.code == "adapter-module"


def test_a_layer_that_is_not_there_is_refused(llama):
    with pytest.raises(ModelError, match=r"layers\.7") as caught:
        port_sizes(llama.reference, ["model.layers.7.self_attn.q_proj"])
    assert caught.value.code == "adapter-base"

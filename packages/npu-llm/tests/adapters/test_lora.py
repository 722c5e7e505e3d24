import json
import math

import pytest
import torch

from npu_llm.adapters.lora import SCALES, adapted, idle_inputs, port_names, port_sizes, read_adapter
from npu_llm.errors import CaptureError, ModelError

Q0 = "model.layers.0.self_attn.q_proj"


def test_matrices_are_found_by_the_paths_of_modules(save_adapter):
    found = read_adapter(save_adapter("one", "self_attn.q_proj", "mlp.down_proj"))
    assert sorted(found.layers) == [
        "model.layers.0.mlp.down_proj", Q0,
        "model.layers.1.mlp.down_proj", "model.layers.1.self_attn.q_proj",
    ]  # fmt: skip
    layer = found.layers["model.layers.0.mlp.down_proj"]
    assert (layer.first.shape, layer.second.shape) == ((3, 48), (32, 3))
    assert layer.scale == pytest.approx(7 / 3)
    torch.testing.assert_close(layer.delta(2.0), (layer.second @ layer.first) * (14 / 3))


def test_rslora_scales_by_the_root_of_the_rank(save_adapter):
    found = read_adapter(save_adapter("root", "self_attn.q_proj", use_rslora=True))
    assert found.layers[Q0].scale == pytest.approx(7 / math.sqrt(3))


def test_a_layer_may_have_an_alpha_of_its_own(save_adapter):
    pattern = {r"layers\.0\.self_attn\.q_proj": 12.0}
    found = read_adapter(save_adapter("own", "self_attn.q_proj", alpha_pattern=pattern))
    assert found.layers[Q0].scale == pytest.approx(4.0)
    assert found.layers["model.layers.1.self_attn.q_proj"].scale == pytest.approx(7 / 3)


def test_dora_embeddings_and_whole_weights_are_told_apart(save_adapter):
    more = {
        f"base_model.model.{Q0}.lora_magnitude_vector": torch.rand(32),
        "base_model.model.model.embed_tokens.lora_embedding_A": torch.randn(3, 97),
        "base_model.model.model.embed_tokens.lora_embedding_B": torch.randn(32, 3),
        "base_model.model.model.norm.weight": torch.rand(32),
        f"base_model.model.{Q0}.base_layer.weight": torch.rand(32, 32),
    }
    found = read_adapter(save_adapter("more", "self_attn.q_proj", more=more))
    assert found.layers[Q0].magnitude.shape == (32,)
    assert found.layers["model.embed_tokens"].is_embedding
    assert found.layers["model.embed_tokens"].delta(1.0).shape == (97, 32)
    assert sorted(found.replaced) == ["model.norm.weight"]


def test_another_kind_of_adapter_is_refused(save_adapter):
    with pytest.raises(ModelError, match="IA3") as caught:
        read_adapter(save_adapter("kind", "self_attn.q_proj", peft_type="IA3"))
    assert caught.value.code == "adapter-kind"


def cut(folder):
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def without_b(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "adapter_model.safetensors"
    tensors = {name: one for name, one in load_file(path).items() if "lora_B" not in name}
    save_file(tensors, path)


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        without_b,
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        lambda folder: (folder / "adapter_config.json").write_text("{"),
        lambda folder: (folder / "adapter_config.json").write_text(json.dumps([1])),
    ],
    ids=["cut", "without-b", "no-weights", "no-json", "no-object"],
)
def test_damaged_files_are_refused(save_adapter, damage):
    folder = save_adapter("damaged", "self_attn.q_proj")
    damage(folder)
    with pytest.raises(ModelError) as caught:
        read_adapter(folder)
    assert caught.value.code == "adapter-unreadable"
    assert str(folder) in str(caught.value)


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

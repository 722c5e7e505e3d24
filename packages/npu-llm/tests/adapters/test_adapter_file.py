import json
import math

import pytest
import torch

from npu_llm.adapters.adapter_file import read_adapter
from npu_llm.errors import ModelError

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

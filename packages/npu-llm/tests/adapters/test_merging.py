import json
from pathlib import Path

import pytest
import torch
import transformers

from npu_llm.adapters.merging import merge
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ModelError
from tiny_gguf import write_tiny

WITNESS = json.loads((Path(__file__).parents[1] / "gguf/witness.json").read_text())

Q0 = "model.layers.0.self_attn.q_proj"


def weight(folder, name):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return dict(model.named_parameters())[f"{name}.weight"].detach()


def test_merged_weights_are_the_models_and_the_scaled_products(llama, save_adapter, tmp_path):
    one = save_adapter("one", "self_attn.q_proj")
    two = save_adapter("two", "self_attn.q_proj", "mlp.down_proj", rank=2)
    folder = merge(llama.folder, [(one, 0.5), (two, 1.0)], tmp_path / "merged")
    from safetensors.torch import load_file

    expected = llama.reference.get_submodule(Q0).weight.detach().clone()
    for path, factor in ((one, 0.5 * 7 / 3), (two, 7 / 2)):
        held = load_file(path / "adapter_model.safetensors")
        a, b = (held[f"base_model.model.{Q0}.lora_{part}.weight"] for part in "AB")
        expected += factor * (b @ a)
    torch.testing.assert_close(weight(folder, Q0), expected)
    same = "model.layers.1.self_attn.v_proj"
    assert torch.equal(weight(folder, same), llama.reference.get_submodule(same).weight)


def test_dora_keeps_the_length_that_it_learned(llama, save_adapter, tmp_path):
    lengths = torch.rand(32) + 0.5
    more = {f"base_model.model.{Q0}.lora_magnitude_vector": lengths}
    path = save_adapter("dora", "self_attn.q_proj", more=more, use_dora=True)
    folder = merge(llama.folder, [(path, 1.0)], tmp_path / "merged")
    torch.testing.assert_close(weight(folder, Q0).norm(dim=1), lengths)


@pytest.mark.parametrize("name", ["llama3rope", "phi3_long_256_64", "llama_rope_yarn"])
def test_rotary_factors_of_a_gguf_file_are_kept(name, tmp_path):
    path = write_tiny(tmp_path / "some.gguf", WITNESS[name])
    folder = merge(path, [], tmp_path / "merged")
    model, weights = load_model(find_source(path))
    weights.fill()
    again, weights = load_model(find_source(folder), has_long_ropes=True)
    weights.fill()
    ids = torch.tensor([WITNESS[name]["answer"]["ids"]])
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0.0, atol=1e-4)


def test_what_no_config_says_is_refused(tmp_path):
    path = write_tiny(tmp_path / "some.gguf", WITNESS["nemotron_bias"])
    with pytest.raises(ModelError, match=r"down_proj\.bias") as caught:
        merge(path, [], tmp_path / "merged")
    assert caught.value.code == "gguf-config"
    assert not (tmp_path / "merged").exists()


def test_an_adapter_of_another_model_is_refused(tiny, save_adapter, tmp_path):
    path = save_adapter("one", "self_attn.q_proj")
    with pytest.raises(ModelError, match=r"self_attn\.q_proj") as caught:
        merge(tiny("gpt2").folder, [(path, 1.0)], tmp_path / "merged")
    assert caught.value.code == "adapter-base"
    assert not (tmp_path / "merged").exists()


@pytest.mark.filterwarnings("ignore")  # PEFT's and transformers' own about each other
@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_merged_models_equal_pefts(llama, tmp_path, options):
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained
    config = peft.LoraConfig(
        r=3, lora_alpha=7, target_modules=["q_proj", "down_proj"], init_lora_weights=False,
        modules_to_save=["norm"], **options,
    )  # fmt: skip
    peft.get_peft_model(base(llama.folder), config).save_pretrained(tmp_path / "adapter")
    merged = merge(llama.folder, [(tmp_path / "adapter", 1.0)], tmp_path / "merged")
    expected = peft.PeftModel.from_pretrained(base(llama.folder), tmp_path / "adapter")
    ids = torch.randint(3, 97, (2, 9))
    with torch.no_grad():
        wanted = expected.merge_and_unload().eval()(ids).logits
        got = base(merged).eval()(ids).logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)

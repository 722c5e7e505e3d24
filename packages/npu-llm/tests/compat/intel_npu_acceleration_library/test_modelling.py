"""Models of intel-npu-acceleration-library by name."""

import pytest
import torch
import transformers

import npu_llm
from npu_llm.compat.intel_npu_acceleration_library.compiler import CompilerConfig
from npu_llm.compat.intel_npu_acceleration_library.modelling import (
    NPUAutoModel,
    NPUModel,
    NPUModelForCausalLM,
    NPUModelForSeq2SeqLM,
)
from npu_llm.compat.intel_npu_acceleration_library.nn import QuantizedLinear
from npu_llm.errors import OptionError

IDS = torch.tensor([[1, 5, 9, 23]])


def test_a_language_model_generates_as_transformers_does(llama, monkeypatch):
    monkeypatch.setenv("NPU_LLM_CACHE_DIR", str(llama.cache_dir))
    config = CompilerConfig(dtype=torch.float32)
    model = NPUModelForCausalLM.from_pretrained(
        str(llama.folder), config=config, use_cache=True, attn_implementation="sdpa"
    ).eval()
    assert type(model) is NPUModelForCausalLM
    assert model.to("cpu") is model
    assert model.precision.name == "float32"
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = llama.reference.generate(IDS, **options)
    assert torch.equal(model.generate(IDS, **options), expected)
    chat = transformers.BatchEncoding({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)})
    assert torch.equal(model.generate(chat, **options), expected)


@pytest.mark.parametrize(
    "arguments, received",
    [
        ({"max_memory": 3, "device_map": "auto"}, "device_map, max_memory"),
        ({"config": CompilerConfig(training=True)}, "training=True"),
    ],
)
@pytest.mark.parametrize("kind", [NPUModelForCausalLM, NPUModelForSeq2SeqLM])
def test_what_a_language_model_does_not_take_is_refused(kind, arguments, received):
    with pytest.raises(OptionError, match=f"got {received}") as caught:
        kind.from_pretrained("anything", **arguments)
    assert caught.value.code == "compat-argument"


def test_other_models_are_transformers_with_their_layers_replaced(llama):
    model = NPUAutoModel.from_pretrained(str(llama.folder), dtype=torch.int8)
    layers = [type(one).__name__ for one in model.modules() if "Linear" in type(one).__name__]
    assert set(layers) == {QuantizedLinear.__name__}
    expected = llama.reference.model(IDS).last_hidden_state.detach()
    found = model(IDS).last_hidden_state.detach()
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()


def test_a_model_needs_a_class():
    assert npu_llm.NPUModel is NPUModel
    with pytest.raises(OptionError) as caught:
        NPUModel.from_pretrained("anything", CompilerConfig())
    assert caught.value.code == "transformers-class"

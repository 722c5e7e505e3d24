import pytest
import torch

from npu_llm.errors import ModelError


def test_checkpoint_of_floats_has_none(folder):
    tensors = {"a.weight": torch.ones(2, 2), "a.position_ids": torch.arange(3)}
    assert folder.scheme(tensors, None) is None
    assert folder.scheme(tensors, {"quant_method": "gguf"}) is None  # saved of a GGUF file


def test_config_may_stand_in_a_file_of_its_own(folder):
    tensors = {
        "a.qweight": torch.zeros(4, 32, dtype=torch.int32),
        "a.qzeros": torch.zeros(1, 4, dtype=torch.int32),
        "a.scales": torch.ones(1, 32, dtype=torch.float16),
        "a.bias": torch.ones(32),
    }
    scheme = folder.scheme(tensors, None, quantize_config={"bits": 4, "group_size": 32})
    assert str(scheme) == "gptq: 1 weights in 4 bits in groups of 32"
    assert sorted(one.name for one in scheme.tensors) == ["a.bias", "a.weight"]
    assert scheme.integer_bits == 4


@pytest.mark.parametrize(
    "config, tensors, reason",
    [
        ({"quant_method": "aqlm"}, {"a.codes": torch.ones(2)}, "quant_method 'aqlm'"),
        (
            None,
            {"a.qweight": torch.zeros(2, 2, dtype=torch.int32)},
            "without a quantization_config",
        ),
        (None, {"a.weight": torch.zeros(2, 2, dtype=torch.int8)}, "a.weight of integers"),
    ],
)
def test_forms_that_are_not_read_are_errors(folder, config, tensors, reason):
    with pytest.raises(ModelError, match=rf"{reason}.*\[quantization-form\]"):
        folder.scheme(tensors, config)


def test_experts_that_the_model_joins_are_floats(folder):
    tensors = {
        f"a.{layer}.{name}": value
        for layer in ("experts.0.up_proj", "self_attn.q_proj")
        for name, value in (("weight", torch.ones(2, 32).to(torch.int8)), ("SCB", torch.ones(2)))
    }
    scheme = folder.scheme(tensors, {"quant_method": "bitsandbytes"})
    assert str(scheme) == (
        "bitsandbytes: 1 weights in 8 bits with a scale per output, dequantized as the model "
        "merges its experts, in 16 bits; 1 weights in 8 bits with a scale per output"
    )

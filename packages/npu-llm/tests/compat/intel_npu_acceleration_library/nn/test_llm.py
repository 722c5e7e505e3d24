"""Parts of language models, and generation within a fixed length."""

import pytest
import torch
import transformers

from npu_llm.compat.intel_npu_acceleration_library.compiler import (
    compile,  # noqa: A004  # that library's name
)
from npu_llm.compat.intel_npu_acceleration_library.nn.llm import (
    PhiMLP,
    generate_with_static_shape,
    lshift_insert,
)
from npu_llm.errors import ContextError, OptionError

IDS = torch.tensor([[1, 5, 9, 23]])


@pytest.mark.parametrize("use_past", [True, False])
def test_a_compiled_model_generates_to_the_length_as_transformers_does(llama, use_past):
    model = transformers.AutoModelForCausalLM.from_pretrained(llama.folder)
    options = {"max_length": 10, "do_sample": False, "eos_token_id": None}
    expected = llama.reference.generate(IDS, **options)[0, 4:].tolist()
    found = generate_with_static_shape(compile(model), IDS, 10, None, use_past, 0)
    assert list(found) == expected


def test_a_model_of_npu_llm_generates_by_its_own_function(llama):
    options = {"max_length": 10, "do_sample": False, "eos_token_id": None}
    expected = llama.reference.generate(IDS, **options)[0, 4:].tolist()
    assert list(generate_with_static_shape(llama.ours(), IDS, 10, pad_token_id=0)) == expected


def test_what_a_fixed_length_does_not_fit_is_refused():
    for options in ({}, {"pad_token_id": 0, "position_ids": IDS}):
        with pytest.raises(OptionError) as caught:
            generate_with_static_shape(None, IDS, 8, **options)
        assert caught.value.code == "static-padding"
    with pytest.raises(ContextError):
        generate_with_static_shape(None, IDS, 3, pad_token_id=0)


def test_phi_mlp_gives_transformers_results():
    config = transformers.PhiConfig(hidden_size=32, intermediate_size=48)
    torch.manual_seed(0)
    layer = transformers.models.phi.modeling_phi.PhiMLP(config)
    x = torch.randn(2, 5, 32)
    expected = layer(x).detach()
    torch.testing.assert_close(PhiMLP.fromTorch(layer)(x), expected, atol=0.01, rtol=0.01)


def test_columns_move_left():
    shifted = lshift_insert(torch.tensor([[1, 2, 3]]), 7)
    assert shifted.tolist() == [[2, 3, 7]]

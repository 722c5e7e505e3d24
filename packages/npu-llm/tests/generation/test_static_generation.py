import itertools

import pytest
import torch

from npu_llm import generate_with_static_shape, warm_up_decoder_model
from npu_llm.errors import ContextError, OptionError


@pytest.fixture
def ids():
    return torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize("use_past", [True, False])
def test_one_row_gives_the_tokens_of_generate(llama, ids, each_pipeline, use_past):
    model = llama.ours("float32", each_pipeline)
    options = {"do_sample": False, "eos_token_id": None}
    got = list(generate_with_static_shape(model, ids[:1], 20, use_past=use_past, **options))
    assert got == model.generate(ids[:1], max_length=20, **options)[0, 9:].tolist()
    assert len(got) == 11


def test_rows_end_at_their_end_token_and_go_on_with_padding(llama, ids, each_pipeline):
    model = llama.ours("float32", each_pipeline)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    options = {"do_sample": False, "eos_token_id": list(range(3, 50)), "pad_token_id": 0}
    rows = list(generate_with_static_shape(model, ids, 40, attention_mask=mask, **options))
    expected = llama.reference.generate(ids, attention_mask=mask, max_length=40, **options)
    assert torch.stack(rows, 1).tolist() == expected[:, 9:].tolist()
    assert 9 + len(rows) < 40


def test_sampling_follows_its_seed(llama, ids):
    options = {"do_sample": True, "temperature": 0.8, "top_k": 20, "eos_token_id": None}
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(list(generate_with_static_shape(llama.ours(), ids[:1], 30, **options)))
    assert drawn[0] == drawn[1] != drawn[2]


def test_all_steps_of_a_generation_have_one_capacity(llama, ids, monkeypatch):
    model = llama.ours("float32", "static")
    programs = model._pipeline.programs
    sizes = []
    get = programs.get
    monkeypatch.setattr(programs, "get", lambda wanted: sizes.append(wanted) or get(wanted))
    options = {"do_sample": False, "eos_token_id": None}
    first = list(itertools.islice(generate_with_static_shape(model, ids[:1], 100, **options), 3))
    assert len(first) == 3
    assert {wanted.capacity for wanted in sizes} == {128}


@pytest.mark.parametrize("length", [5, 9, 500])
def test_lengths_that_hold_no_prompt_or_are_beyond_the_context(llama, ids, length):
    with pytest.raises(ContextError, match=f"got {length}") as caught:
        generate_with_static_shape(llama.ours(), ids, length)
    assert caught.value.code == "context-overflow"


def test_searches_that_give_no_tokens_by_and_by(llama, ids):
    with pytest.raises(OptionError, match=r"model\.generate") as caught:
        generate_with_static_shape(llama.ours(), ids, 20, num_beams=3)
    assert caught.value.code == "static-search"
    with pytest.raises(OptionError, match="LlamaForCausalLM") as caught:
        generate_with_static_shape(llama.reference, ids, 20)
    assert caught.value.code == "foreign-model"


@pytest.mark.parametrize("length", [2, 12])
def test_warming_up_compiles_what_a_generation_needs(llama, ids, length):
    model = llama.ours("float32", "static")

    def tokenizer(text, return_tensors):
        assert (text, return_tensors) == ("Hello", "pt")
        return {"input_ids": torch.tensor([[5, 6]])}

    warm_up_decoder_model(tokenizer, model, length)
    compiled = model._pipeline.programs.compiled
    if length > 9:
        list(generate_with_static_shape(model, ids[:1], length, eos_token_id=None))
        assert model._pipeline.programs.compiled == compiled


@pytest.mark.parametrize("kind", ["one row without a batch", "float"])
def test_tokens_that_do_not_fit_are_refused_at_the_call(llama, ids, kind):
    given = ids.float() if kind == "float" else ids[0]
    with pytest.raises(OptionError, match=r"`input_ids` must .* \[step-(shape|dtype)\]"):
        generate_with_static_shape(llama.ours(), given, 20)

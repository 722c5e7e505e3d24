"""Assisted generation with transformers' code: drafts by prompt lookup and by a draft model."""

import pytest
import torch

from npu_llm.generation.lazy_model import LazyModel
from npu_llm.models.entry import Entry
from npu_runtime import observe

NO_TOKEN = 10_000  # beyond the vocabulary: 4.57's prompt lookup cannot do without an end
GREEDY = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": NO_TOKEN, "pad_token_id": 0}
LOOKUP = {"prompt_lookup_num_tokens": 4}


def prompt(length=13):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 97, (1, length), generator=generator).repeat(1, 3)


def same_beginning(got, plain):
    """Whether all of `plain` is there: 4.57's prompt lookup may give a token or two more."""
    return got[:, : plain.shape[1]].tolist() == plain.tolist()


@pytest.fixture
def steps():
    """Tokens of each step that any model runs."""
    found = []

    def note(spans):
        found.extend(span.args["tokens"] for span in spans if "tokens" in span.args)

    observe.add_listener(note)
    yield found
    observe.remove_listener(note)


@pytest.fixture(scope="module")
def drafts(tiny):
    """Draft models by name: the model itself, and one that guesses otherwise."""
    return {"itself": tiny("llama").ours(), "another": tiny("qwen2").ours()}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "opt"])
def test_prompt_lookup_gives_the_tokens_of_transformers(tiny, name, steps):
    pair = tiny(name)
    plain, expected = (pair.reference.generate(prompt(), **how, **GREEDY) for how in ({}, LOOKUP))
    got = pair.ours().generate(prompt(), **LOOKUP, **GREEDY)
    assert got.tolist() == expected.tolist()
    assert same_beginning(got, plain)
    assert max(steps[1:]) > 1


def test_draft_model_may_be_one_that_load_returned(llama, drafts):
    draft = drafts["another"]
    loaded = LazyModel.__new__(LazyModel)
    loaded.__dict__ = vars(draft)
    expected = llama.reference.generate(prompt(), **GREEDY)
    got = llama.ours().generate(prompt(), assistant_model=loaded, **GREEDY)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("draft", ["itself", "another"])
def test_draft_model_changes_no_token(llama, drafts, draft):
    expected = llama.reference.generate(prompt(), **GREEDY)
    got = llama.ours().generate(prompt(), assistant_model=drafts[draft], **GREEDY)
    assert got.tolist() == expected.tolist()


def test_draft_that_guesses_right_saves_steps(llama, drafts, steps, monkeypatch):
    monkeypatch.setattr(drafts["itself"].generation_config, "assistant_confidence_threshold", 0.0)
    llama.ours().generate(prompt(), assistant_model=drafts["itself"], **GREEDY)
    assert sum(tokens > 2 for tokens in steps[2:]) >= 2


def assisted(llama, drafts, way, **options):
    how = LOOKUP if way == "lookup" else {"assistant_model": drafts["another"]}
    return llama.ours().generate(prompt(), **how, **options)


@pytest.mark.parametrize("way", ["lookup", "draft"])
def test_sampling_from_one_choice_is_greedy(llama, drafts, way):
    plain = llama.ours().generate(prompt(), **GREEDY)
    options = {**GREEDY, "do_sample": True, "top_k": 1}
    assert assisted(llama, drafts, way, **options).tolist() == plain.tolist()


def test_samples_with_guesses_are_those_of_transformers(llama):
    options = {"do_sample": True, "temperature": 3.0, "max_new_tokens": 30}
    options |= {"eos_token_id": NO_TOKEN, "pad_token_id": 0}
    results = []
    for model in (llama.reference, llama.ours()):
        torch.manual_seed(3)
        results.append(model.generate(prompt(), **LOOKUP, **options).tolist())
    assert results[0] == results[1]


@pytest.mark.parametrize("way", ["lookup", "draft"])
def test_sampling_with_a_seed_repeats(llama, drafts, way, monkeypatch):
    # Else each answer teaches the draft how far to guess in the next one.
    for draft in drafts.values():
        monkeypatch.setattr(draft.generation_config, "assistant_confidence_threshold", 0.0)
    options = {"do_sample": True, "temperature": 20.0, "max_new_tokens": 30}
    options |= {"eos_token_id": NO_TOKEN, "pad_token_id": 0}
    results = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        results.append(assisted(llama, drafts, way, **options)[0].tolist())
    assert results[0] == results[1] != results[2]
    assert len(results[0]) == 39 + 30


def test_tokens_on_the_device(llama):
    expected = llama.ours().generate(prompt(), **LOOKUP, **GREEDY)
    got = llama.ours().generate(prompt().to("npu"), **LOOKUP, **GREEDY)
    assert got.device.type == "npu"
    assert got.tolist() == expected.tolist()


def test_streamer_gets_all_tokens(llama, streamer):
    output = llama.ours().generate(prompt(), streamer=streamer, **LOOKUP, **GREEDY)
    assert streamer.tokens == output[0].tolist()
    assert streamer.ended == 1


def test_cache_of_an_assisted_answer_can_be_continued(llama):
    model = llama.ours()
    first = prompt(8)
    turn = model.generate(first, return_dict_in_generate=True, **LOOKUP, **GREEDY)
    assert turn.past_key_values.get_seq_length() == turn.sequences.shape[1] - 1
    longer = torch.cat([turn.sequences, torch.tensor([[5, 6]])], 1)
    plain, expected = (model.generate(longer, **how, **GREEDY) for how in ({}, LOOKUP))
    got = model.generate(longer, past_key_values=turn.past_key_values, **LOOKUP, **GREEDY)
    assert got.tolist() == expected.tolist()
    assert same_beginning(got, plain)


def test_model_whose_cache_cannot_be_cut_refuses(llama, monkeypatch):
    monkeypatch.setattr(Entry, "relocation", None)
    with pytest.raises(ValueError, match="assisted generation"):
        llama.ours(pipeline="dynamic").generate(prompt(), **LOOKUP, **GREEDY)

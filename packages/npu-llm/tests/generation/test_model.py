import gc

import pytest
import torch
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, StoppingCriteria

from npu_llm import ContextError, NPUModelForCausalLM, OptionError
from npu_llm.engine.engine import Engine
from npu_runtime import observe

LONG = {"max_new_tokens": 20, "eos_token_id": None}
GREEDY = {**LONG, "do_sample": False}


def prompt(rows=1, length=13, seed=0):
    torch.manual_seed(seed)
    return torch.randint(3, 97, (rows, length))


def both(pair, ids, mask=None, seed=None, **options):
    """The tokens that transformers and we generate."""
    mask = torch.ones_like(ids) if mask is None else mask
    results = []
    for model in (pair.reference, pair.ours()):
        if seed is not None:
            torch.manual_seed(seed)
        results.append(model.generate(ids, attention_mask=mask, **options).tolist())
    return results


def assert_equal(pair, *arguments, **options):
    expected, got = both(pair, *arguments, **options)
    assert got == expected


# Ways of generating


@pytest.mark.parametrize("beams, returned", [(2, 1), (4, 3)])
def test_beam_search_gives_the_beams_of_transformers(llama, beams, returned):
    assert_equal(llama, prompt(2), num_beams=beams, num_return_sequences=returned, **GREEDY)


def test_beams_end_at_the_end_of_sequence(llama):
    assert_equal(
        llama, prompt(2), num_beams=3, max_new_tokens=20, do_sample=False, eos_token_id=[5, 40, 77]
    )


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_greedy_on_a_padded_batch(tiny, name):
    ids, mask = prompt(3), torch.ones(3, 13, dtype=torch.int64)
    mask[0, :7] = 0
    mask[1, :2] = 0
    assert_equal(tiny(name), ids * mask, mask, **GREEDY)


def test_sampling_with_a_seed(llama):
    options = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "top_k": 30, "seed": 7}
    assert_equal(llama, prompt(2), **LONG, **options)


def test_beam_sampling_with_a_seed(llama):
    assert_equal(llama, prompt(1), num_beams=3, do_sample=True, seed=3, **LONG)


def test_several_samples_of_one_prompt(llama):
    assert_equal(llama, prompt(1), num_return_sequences=3, do_sample=True, seed=3, **LONG)


def test_without_cache(llama):
    assert_equal(llama, prompt(2), use_cache=False, **GREEDY)


def test_prefill_in_chunks(llama):
    assert_equal(llama, prompt(1, 30), prefill_chunk_size=8, **GREEDY)


def test_generation_config_object(llama):
    config = GenerationConfig(
        max_new_tokens=12, do_sample=False, repetition_penalty=1.3, no_repeat_ngram_size=2,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert_equal(llama, prompt(2), generation_config=config)


def test_logits_processor_of_the_user(llama):
    class Ban(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores.index_fill(1, torch.arange(50), -torch.inf)

    assert_equal(llama, prompt(2), logits_processor=[Ban()], **GREEDY)


def test_stopping_criteria_of_the_user(llama):
    class AtLength(StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            return torch.full((input_ids.shape[0],), input_ids.shape[1] >= 17)

    ids = prompt(2)
    assert_equal(llama, ids, stopping_criteria=[AtLength()], **GREEDY)
    assert llama.ours().generate(ids, stopping_criteria=[AtLength()], **GREEDY).shape[1] == 17


def test_end_of_sequence_stops_rows_by_themselves(llama):
    assert_equal(
        llama, prompt(4), max_new_tokens=30, do_sample=False, eos_token_id=list(range(60, 70))
    )


def test_scores_and_logits_are_those_of_transformers(llama, logit_tolerance):
    near = logit_tolerance
    ids = prompt(2)
    options = {**GREEDY, "return_dict_in_generate": True, "output_scores": True}
    expected = llama.reference.generate(ids, output_logits=True, **options)
    got = llama.ours().generate(ids, output_logits=True, **options)
    assert len(got.scores) == len(expected.scores) == 20
    for ours, theirs in zip(got.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=near, atol=near)


def test_streamer_gets_prompt_and_tokens_one_by_one(llama, streamer):
    ids = prompt(1)
    output = llama.ours().generate(ids, streamer=streamer, **GREEDY)
    assert streamer.parts[0] == ids[0].tolist()
    assert [token for part in streamer.parts[1:] for token in part] == output[0, 13:].tolist()
    assert all(len(part) == 1 for part in streamer.parts[1:])
    assert streamer.ended == 1


def test_second_turn_reads_only_what_is_new(llama):
    model, first = llama.ours(), prompt(1)
    turn = model.generate(first, return_dict_in_generate=True, **GREEDY)
    second = torch.cat([turn.sequences, prompt(1, 5, seed=9)], 1)
    expected = llama.reference.generate(second, **GREEDY).tolist()
    spans = []
    observe.add_listener(spans.extend)
    try:
        got = model.generate(second, past_key_values=turn.past_key_values, **GREEDY)
    finally:
        observe.remove_listener(spans.extend)
    assert got.tolist() == expected
    assert max(span.args["tokens"] for span in spans if span.category == "decode") == 6


@pytest.mark.parametrize(
    "options, is_ours",
    [
        ({}, True),
        ({"repetition_penalty": 1.3, "suppress_tokens": [5, 6]}, True),
        ({"max_length": 20, "max_new_tokens": None}, True),
        ({"no_repeat_ngram_size": 2}, False),
        ({"do_sample": True}, False),  # draws as transformers does
    ],
    ids=str,
)
def test_one_row_goes_to_the_engine_if_it_can(llama, monkeypatch, options, is_ours):
    steps = []
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda self: steps.append(1) or step(self))
    assert_equal(llama, prompt(1), seed=5, **{**GREEDY, **options})
    assert bool(steps) == is_ours


@pytest.mark.parametrize(
    "options, is_ours",
    [
        ({}, True),
        ({"eos_token_id": list(range(3, 40)), "pad_token_id": 1}, True),
        ({"eos_token_id": list(range(3, 40)), "pad_token_id": None}, True),
        ({"repetition_penalty": 1.3}, False),  # counts the padding
        ({"num_beams": 2}, False),
    ],
    ids=str,
)
def test_a_batch_goes_to_the_engine_of_kernels(llama, monkeypatch, options, is_ours):
    steps = []
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda self: steps.append(1) or step(self))
    mask = torch.ones(3, 13, dtype=torch.int64)
    mask[1, :4] = 0
    arguments = {"attention_mask": mask, **GREEDY, **options}
    model = llama.ours(pipeline="kernels")
    used = model.block_pool.used
    got = model.generate(prompt(3), **arguments)
    assert got.tolist() == llama.reference.generate(prompt(3), **arguments).tolist()
    assert bool(steps) == is_ours
    gc.collect()
    assert model.block_pool.used == used


# Tensors and devices


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_output_lives_where_the_prompt_does(llama, device):
    ids = prompt(2)
    expected = llama.reference.generate(ids, **GREEDY)
    got = llama.ours().generate(ids.to(device), **GREEDY)
    assert got.device.type == device
    assert got.cpu().tolist() == expected.tolist()


def test_model_says_npu_and_its_dtype(llama):
    assert llama.ours().device == torch.device("npu")
    assert llama.ours().dtype is torch.float32


@pytest.mark.parametrize("kept, shape", [(0, 13), (1, 1), (4, 4), (torch.tensor([2, 0]), 2)])
def test_logits_to_keep(llama, kept, shape):
    ids = prompt(2)
    whole = llama.ours()(ids).logits
    part = llama.ours()(ids, logits_to_keep=kept).logits
    assert part.shape == (2, shape, 97)
    rows = kept if isinstance(kept, torch.Tensor) else torch.arange(13)[-kept:]
    torch.testing.assert_close(part, whole[:, rows], rtol=1e-5, atol=1e-5)


def test_two_generations_do_not_share_their_cache(llama):
    model = llama.ours()
    ids, other = prompt(1), prompt(1, 8, seed=4)
    first, second = model(ids), model(other)
    alone = llama.reference.generate(ids, **GREEDY).tolist()
    token = first.logits[:, -1:].argmax(-1)
    step = model(token, past_key_values=first.past_key_values)
    assert step.logits[:, -1].argmax(-1).item() == alone[0][14]
    assert second.past_key_values.get_seq_length() == 8


# Observing


def test_steps_are_spans_and_tokens_are_the_same_with_a_listener(llama):
    ids, events = prompt(1), []
    plain = llama.ours().generate(ids, **GREEDY).tolist()
    observe.add_listener(events.extend)
    try:
        watched = llama.ours().generate(ids, **GREEDY).tolist()
    finally:
        observe.remove_listener(events.extend)
    assert watched == plain
    steps = [event for event in events if event.category in ("prefill", "decode")]
    assert [event.category for event in steps] == ["prefill"] + ["decode"] * 19
    assert steps[0].args["tokens"] == 13


# Refusals


def assert_code(caught, code, *quoted):
    assert caught.value.code == code
    for word in quoted:
        assert word in str(caught.value)


def test_prompt_longer_than_the_context(llama):
    with pytest.raises(ContextError) as caught:
        llama.ours().generate(prompt(1, 129), **GREEDY)
    assert_code(caught, "context-overflow", "128", "129")


def test_answer_ends_where_the_context_ends(llama):
    ids = prompt(1, 120)
    output = llama.ours().generate(ids, max_new_tokens=50, do_sample=False, eos_token_id=None)
    assert output.shape[1] == 128


def test_cache_of_another_kind(llama):
    with pytest.raises(OptionError) as caught:
        llama.ours()(prompt(1), past_key_values=DynamicCache())
    assert_code(caught, "foreign-cache", "DynamicCache")


@pytest.mark.parametrize("asked", ["output_attentions", "output_hidden_states"])
def test_inner_states(llama, asked):
    with pytest.raises(OptionError) as caught:
        llama.ours()(prompt(1), **{asked: True})
    assert_code(caught, "no-inner-states", asked)


def test_unknown_argument_of_generate(llama):
    with pytest.raises(ValueError, match="colour"):
        llama.ours().generate(prompt(1), colour="blue", **GREEDY)


def test_another_device(llama, tmp_path):
    with pytest.raises(OptionError) as caught:
        NPUModelForCausalLM.from_pretrained(llama.folder, device="cuda:0", cache_dir=tmp_path)
    assert_code(caught, "other-device", "cuda:0")


@pytest.mark.parametrize(
    "ids, mask, code",
    [
        (prompt(1)[0], None, "step-shape"),
        (prompt(1).float(), None, "step-dtype"),
        (prompt(1).tolist(), None, "step-dtype"),
        (prompt(1), torch.ones(1, 12), "step-shape"),
        (prompt(2), torch.ones(1, 13), "step-shape"),
        (prompt(1), torch.ones(13), "step-shape"),
    ],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_generate_refuses_tokens_and_masks_that_do_not_fit(llama, ids, mask, code, by_name):
    arguments = {"attention_mask": mask, **GREEDY}
    given, named = ((), {"input_ids": ids}) if by_name else ((ids,), {})
    with pytest.raises(OptionError) as caught:
        llama.ours().generate(*given, **named, **arguments)
    assert_code(caught, code, "must")

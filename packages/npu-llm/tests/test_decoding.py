"""Our decoding loop gives transformers' results, and leaves unsupported options to it."""

import threading

import pytest
import torch
import transformers
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import GenerationMixin

from npu_llm.cache_names import CACHE
from npu_llm.decoding import one_thread


@pytest.fixture
def prompt():
    ids = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture
def long_way(monkeypatch):
    """Counts the generations that transformers' own loop makes."""
    calls = []
    own = GenerationMixin._sample

    def counted(*arguments, **options):
        calls.append(options)
        return own(*arguments, **options)

    monkeypatch.setattr(GenerationMixin, "_sample", counted)
    return calls


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 12},
        {"max_new_tokens": 40, "eos_token_id": list(range(3, 40)), "pad_token_id": 0},
        {"max_new_tokens": 12, "repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
        {"max_new_tokens": 8, "do_sample": True, "temperature": 0.7, "top_k": 12, "top_p": 0.9},
        {"max_new_tokens": 8, "do_sample": True, "num_return_sequences": 3},
        {"max_length": 20, "max_time": 60.0},
        {"max_new_tokens": 1},
    ],
    ids=["greedy", "ends", "processors", "sampling", "several", "time", "one token"],
)
def test_same_tokens_as_by_transformers_loop(
    llama, prompt, long_way, options, each_openvino_pipeline
):
    model = llama.ours("float32", each_openvino_pipeline)
    options = {"do_sample": False, "eos_token_id": None, **options}
    torch.manual_seed(0)
    got = model.generate(**prompt, **options)
    assert not long_way
    torch.manual_seed(0)
    scores = {"output_scores": True, "return_dict_in_generate": True}
    expected = model.generate(**prompt, **options, **scores).sequences
    assert len(long_way) == 1
    assert got.tolist() == expected.tolist()


def test_criteria_of_a_caller_end_rows_as_with_transformers(llama, prompt, long_way):
    class AfterFive(StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            return torch.full(input_ids.shape[:1], input_ids.shape[1] >= 14)

    criteria = StoppingCriteriaList([AfterFive()])
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    got = llama.ours().generate(**prompt, **options, stopping_criteria=criteria)
    assert not long_way
    expected = llama.reference.generate(**prompt, **options, stopping_criteria=criteria)
    assert got.tolist() == expected.tolist()
    assert got.shape[1] == 14


def test_streamer_gets_prompt_and_tokens(llama, prompt, streamer):
    one = {name: tensor[:1] for name, tensor in prompt.items()}
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    got = llama.ours().generate(**one, streamer=streamer, **options)
    assert streamer.ended == 1
    assert streamer.values[0].tolist() == one["input_ids"].tolist()
    assert streamer.tokens == got[0].tolist()


def test_a_cache_is_returned_and_continued(llama, prompt):
    model = llama.ours()
    options = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    first = model.generate(**prompt, max_new_tokens=6, **options)
    assert first.past_key_values.get_seq_length() == 9 + 6 - 1
    more = torch.cat([first.sequences, torch.tensor([[5, 6], [7, 8]])], 1)
    mask = torch.cat([prompt["attention_mask"], torch.ones(2, 8, dtype=torch.int64)], 1)
    again = model.generate(
        more,
        attention_mask=mask,
        past_key_values=first.past_key_values,
        max_new_tokens=6,
        **options,
    )
    expected = model.generate(more, attention_mask=mask, max_new_tokens=6, **options)
    assert again.sequences.tolist() == expected.sequences.tolist()


@pytest.mark.skipif(
    transformers.__version__ < "5", reason="transformers 4's own generate() cannot do this"
)
def test_new_tokens_alone_continue_a_cache_as_in_transformers(llama, prompt):
    def answer(model):
        first = model.generate(**prompt, max_new_tokens=3, return_dict_in_generate=True, **greedy)
        cache = getattr(first, CACHE)
        mask = torch.ones(2, cache.get_seq_length() + 1, dtype=torch.int64)
        mask[:, :9] = prompt["attention_mask"]
        last = first.sequences[:, -1:]
        return model.generate(
            last, attention_mask=mask, max_new_tokens=4, **{CACHE: cache}, **greedy
        ).tolist()

    greedy = {"do_sample": False, "eos_token_id": None}
    assert answer(llama.ours()) == answer(llama.reference)


def test_processors_of_a_caller_see_all_tokens(llama, prompt):
    seen = []

    class Even(LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.append(input_ids.shape[1])
            return scores.masked_fill(torch.arange(97) % 2 == 1, float("-inf"))

    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    got = llama.ours().generate(**prompt, **options, logits_processor=LogitsProcessorList([Even()]))
    assert seen == [9, 10, 11, 12]
    assert not (got[:, 9:] % 2).any()


def test_tokens_on_the_device_come_back_on_it(llama, prompt):
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    model = llama.ours()
    on_npu = {name: tensor.to("npu") for name, tensor in prompt.items()}
    got = model.generate(**on_npu, **options)
    assert got.device.type == "npu"
    assert got.cpu().tolist() == model.generate(**prompt, **options).tolist()


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_number_of_threads_is_one_inside_and_returns_after_an_error(two_threads):
    with one_thread():
        assert torch.get_num_threads() == 1
    with pytest.raises(KeyError), one_thread():
        {}["missing"]
    assert torch.get_num_threads() == 2


def test_other_threads_keep_theirs(two_threads):
    seen, entered, left = [], threading.Event(), threading.Event()

    def other():
        seen.append(torch.get_num_threads())
        entered.set()
        left.wait(10)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with one_thread():
        left.set()
        thread.join()
    assert seen == [2, 2]

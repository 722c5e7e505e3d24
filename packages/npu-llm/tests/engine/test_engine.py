import queue
import random
import threading
from dataclasses import replace

import pytest
import torch

from npu_llm.engine.engine import Engine, EngineOptions
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.sequence import Request
from npu_llm.errors import ContextError, OptionError, ServerError

ENDS = frozenset({2})


def prompts(count, *, longest=60, seed=3):
    numbers = random.Random(seed)
    lengths = [numbers.randint(1, longest) for _ in range(count)]
    return [[numbers.randrange(3, 97) for _ in range(length)] for length in lengths]


def used_by_sequences(engine):
    store = engine._store
    return store._pool.used - len(store.prefixes)


@pytest.mark.parametrize("budget", [9, 33, 256])
def test_answers_of_many_at_once_are_those_of_generate(llama, engine_of, generated, budget):
    model = llama.ours()
    answers = engine_of(model, max_num_batched_tokens=budget, max_num_seqs=8)
    given = prompts(12)
    for index, prompt in enumerate(given):
        answers.ask(prompt, 7 + index, stop_token_ids=ENDS)
    for index, prompt in enumerate(given):
        assert answers.ids(index) == generated(model, prompt, 7 + index)


def test_a_pipeline_without_rows_answers_one_after_the_other(llama, engine_of, generated):
    model = llama.ours(pipeline="static")
    answers = engine_of(model)
    given = [*prompts(2, longest=20), prompts(1, longest=20)[0] + [7, 8]]
    for prompt in given:
        answers.ask(prompt, 6, stop_token_ids=ENDS)
    for index, prompt in enumerate(given):
        assert answers.ids(index) == generated(model, prompt, 6)


def test_what_is_put_back_is_not_lost(llama, fresh, engine_of, generated):
    model, alone = fresh(), llama.ours(pipeline="kernels")
    answers = engine_of(model, cache_bytes=9 * model.block_pool.store.block_bytes)
    given = [prompt * 2 for prompt in prompts(6, longest=10)]
    for prompt in given:
        answers.ask(prompt, 40)
    found = [answers.ids(index) for index in range(len(given))]
    assert found == [generated(alone, p, 40, eos_token_id=None) for p in given]
    assert answers.engine.state().num_preemptions > 0
    assert used_by_sequences(answers.engine) == 0


def test_an_answer_that_outgrows_the_cache_alone_ends_with_its_length(fresh, engine_of):
    model = fresh()
    answers = engine_of(model, cache_bytes=2 * model.block_pool.store.block_bytes)
    answers.ask([5, 6, 7], 60)
    tokens, end = answers.wait()
    assert (len(tokens), end.reason) == (30, "length")
    with pytest.raises(ContextError, match="cache-blocks"):
        answers.ask([5] * 40, 2)


def test_blocks_that_others_hold_are_not_waited_for(fresh, engine_of):
    model = fresh()
    answers = engine_of(model, cache_bytes=2 * model.block_pool.store.block_bytes)
    held = [model.block_pool.take() for _ in range(2)]
    answers.ask([5, 6, 7], 60)
    _, end = answers.wait()
    assert end.error.code == "cache-blocks"
    model.block_pool.release(held)
    answers.ask([5, 6, 7], 4)
    assert len(answers.ids()) == 4


def test_the_least_recently_used_beginnings_go_first(fresh, engine_of):
    model = fresh()
    answers = engine_of(model, cache_bytes=6 * model.block_pool.store.block_bytes)
    first, second, third = ([token] * 40 for token in (11, 12, 13))
    cached = []
    for prompt in (first, second, first, third, first, second):
        answers.ask(prompt, 2)
        cached.append(answers.wait()[1].num_cached_tokens)
    assert cached == [0, 0, 32, 0, 32, 16]  # one block was needed, the end of the second


def test_an_engine_that_has_ended_holds_no_blocks(fresh, engine_of):
    model = fresh()
    answers = engine_of(model)
    answers.ask([5] * 40, 2)
    answers.wait()
    assert model.block_pool.used == 2
    answers.engine.close()
    assert model.block_pool.used == 0


def test_a_shared_beginning_is_read_once(llama, engine_of, generated):
    model = llama.ours(pipeline="kernels")
    answers = engine_of(model)
    common = prompts(1, seed=8)[0] * 8
    common = common[:50]
    given = [[*common, 9 + index] for index in range(4)]
    for prompt in given:
        answers.ask(prompt, 5)
    ends = []
    for index, prompt in enumerate(given):
        tokens, end = answers.wait(index)
        assert [one.id for one in tokens] == generated(model, prompt, 5, eos_token_id=None)
        ends.append(end.num_cached_tokens)
    assert ends == [0, 48, 48, 48]


def test_a_prompt_that_is_wholly_known_is_still_answered(llama, engine_of):
    answers = engine_of(llama.ours(pipeline="kernels"))
    prompt = list(range(3, 3 + 32))
    answers.ask(prompt, 4)
    first = answers.ids()
    answers.ask(prompt, 4)
    tokens, end = answers.wait()
    assert [one.id for one in tokens] == first
    assert end.num_cached_tokens == 16  # the block with the last token is read again


def test_who_leaves_frees_blocks_and_disturbs_nobody(llama, engine_of, generated, monkeypatch):
    model = llama.ours(pipeline="kernels")
    answers = engine_of(model)
    given = prompts(6, longest=30)
    run, left = answers.engine._store.run, threading.Event()

    def run_until_they_leave(pieces):
        sequences = [piece.sequence.token_ids for piece in pieces]
        if any(one[:-5] == given[1] for one in sequences):
            left.wait(30)
        return run(pieces)

    monkeypatch.setattr(answers.engine._store, "run", run_until_they_leave)
    tickets = [answers.ask(prompt, 60) for prompt in given]
    answers.told[1].get(timeout=30)
    for index in (1, 3, 4):
        tickets[index].cancel()
    left.set()
    for index in (1, 3, 4):
        assert answers.wait(index)[1].reason == "cancelled"
    for index in (0, 2, 5):
        assert answers.ids(index) == generated(model, given[index], 60, eos_token_id=None)
    assert used_by_sequences(answers.engine) == 0
    tickets[0].cancel()  # it has ended: nothing happens
    answers.ask(given[0], 3)
    assert answers.wait()[1].reason == "length"


def test_nothing_is_lost_while_clients_come_and_go(llama, fresh, engine_of, generated):
    """Shared beginnings, a cache that is too small, and a third of the clients leave."""
    model = fresh()
    bytes_of = model.block_pool.store.block_bytes
    answers = engine_of(
        model, cache_bytes=14 * bytes_of, max_num_seqs=7, max_num_batched_tokens=24, max_waiting=200
    )
    numbers = random.Random(12)
    beginnings = [prompt[:34] * 2 for prompt in prompts(3, seed=4)]
    given, tickets = [], []
    for _ in range(60):
        prompt = [*numbers.choice(beginnings)[:34], *prompts(1, seed=numbers.random())[0][:20]]
        given.append((prompt, numbers.randint(1, 30)))
        tickets.append(answers.ask(*given[-1]))
    gone = set(numbers.sample(range(60), 20))
    for index in numbers.sample(sorted(gone), 20):
        answers.told[index].get(timeout=60)  # its first token, or its end
        tickets[index].cancel()
    for index, (prompt, count) in enumerate(given):
        if index not in gone:
            expected = generated(llama.ours(pipeline="kernels"), prompt, count, eos_token_id=None)
            assert answers.ids(index) == expected, index
    state = answers.engine.state()
    assert (state.running, state.waiting, state.usage.used) == (0, 0, 0.0)
    assert used_by_sequences(answers.engine) == 0
    assert model.block_pool.used == len(answers.engine._store.prefixes) <= 14
    answers.engine.close()
    assert model.block_pool.used == 0


def test_draws_with_a_seed_repeat_with_and_without_companions(llama, engine_of):
    answers = engine_of(llama.ours())
    drawn = {"temperature": 1.3, "top_p": 0.9, "seed": 17}
    answers.ask([4, 5, 6], 20, **drawn)
    alone = answers.ids()
    for prompt in prompts(4):
        answers.ask(prompt, 20, temperature=2.0)
    answers.ask([4, 5, 6], 20, **drawn)
    assert answers.ids() == alone
    answers.ask([4, 5, 6], 20, temperature=1.3, top_p=0.9, seed=18)
    assert answers.ids() != alone


def test_the_context_ends_an_answer(llama, engine_of):
    model = llama.ours()
    answers = engine_of(model)
    answers.ask([5] * 120, 50)
    tokens, end = answers.wait()
    assert (len(tokens), end.reason) == (8, "length")
    with pytest.raises(ContextError, match="context-overflow"):
        answers.ask([5] * 128, 1)
    with pytest.raises(OptionError, match="empty-prompt"):
        answers.ask([], 1)


def test_a_full_queue_refuses(llama, engine_of, monkeypatch):
    answers = engine_of(llama.ours(), max_num_seqs=1, max_waiting=1)
    run, may_run = answers.engine._store.run, threading.Event()

    def when_told(pieces):
        may_run.wait(60)
        return run(pieces)

    monkeypatch.setattr(answers.engine._store, "run", when_told)
    answers.ask([5, 6], 4)
    answers.ask([5, 7], 4)
    with pytest.raises(ServerError, match=r"takes at most 2 requests.*\[server-busy\]"):
        answers.ask([5, 8], 1)
    may_run.set()
    answers.wait(0)
    answers.wait(1)
    answers.ask([5, 8], 1)
    assert len(answers.ids()) == 1


def test_closing_finishes_within_its_grace_and_cancels_the_rest(talkative_model):
    engine = Engine(talkative_model).start()
    told = []
    ended = threading.Event()
    engine.submit([5], SamplingParams(max_new_tokens=3), told.append)
    engine.submit(
        [6],
        SamplingParams(max_new_tokens=60_000),
        lambda event: ended.set() if hasattr(event, "reason") else None,
    )
    engine.close(grace_s=0.3)
    assert len(told) == 4
    assert ended.is_set()
    with pytest.raises(ServerError, match="server-stopping"):
        engine.submit([5], SamplingParams(max_new_tokens=3), told.append)


def test_a_step_that_fails_ends_its_requests_and_no_others(llama, engine_of, monkeypatch):
    answers = engine_of(llama.ours(pipeline="kernels"))
    run, store = answers.engine._store.run, answers.engine._store

    def failing(pieces):
        if any(piece.sequence.token_ids[0] == 13 for piece in pieces):
            raise RuntimeError("planted")
        return run(pieces)

    monkeypatch.setattr(store, "run", failing)
    answers.ask([13, 4], 4)
    _, end = answers.wait()
    assert (end.reason, str(end.error)) == ("error", "planted")
    answers.ask([14, 4], 4)
    assert len(answers.ids()) == 4
    assert used_by_sequences(answers.engine) == 0


def test_a_thread_that_fails_tells_all_who_wait(fresh, engine_of, monkeypatch):
    answers = engine_of(fresh(), max_num_seqs=1)

    submitted = threading.Event()

    def fail(*_, **__):
        submitted.wait(30)
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(answers.engine._store, "append_slots", fail)
    answers.ask([4, 5], 9)
    answers.ask([4, 6], 9)
    submitted.set()
    ends = [answers.wait(index)[1] for index in (0, 1)]
    assert [str(end.error) for end in ends] == ["planted", "planted"]
    answers.engine._thread.join(10)
    assert not answers.engine.is_alive
    with pytest.raises(ServerError, match="server-stopping"):
        answers.ask([4, 7], 1)


def test_logprobs_are_those_of_the_model(llama, engine_of):
    model = llama.ours()
    answers = engine_of(model)
    answers.ask([4, 5, 6], 3, logprobs=2)
    tokens, _ = answers.wait()
    with torch.no_grad():
        logits = llama.reference(torch.tensor([[4, 5, 6]])).logits[0, -1]
    shares = torch.log_softmax(logits, -1)
    best = shares.topk(2)
    assert [place for place, _ in tokens[0].top] == best.indices.tolist()
    assert [value for _, value in tokens[0].top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert tokens[0].logprob == pytest.approx(float(best.values[0]), abs=1e-4)


def test_a_step_must_hold_more_than_the_next_tokens_of_all():
    with pytest.raises(OptionError, match="step-tokens"):
        EngineOptions(max_num_batched_tokens=64, max_num_seqs=64)


@pytest.mark.parametrize("is_sequential", [True, False])
def test_a_caller_runs_the_steps_of_its_requests(llama, generated, is_sequential):
    model = llama.ours()
    engine = Engine(model, EngineOptions(is_sequential=is_sequential))
    params = SamplingParams(max_new_tokens=6, temperature=0.0)
    *tokens, end = engine.generate([5, 6, 7], params)
    assert [one.id for one in tokens] == generated(model, [5, 6, 7], 6, eos_token_id=None)
    assert (end.reason, engine.step()) == ("length", False)


def test_a_loop_that_is_left_cancels_its_request(llama):
    engine = Engine(llama.ours(), EngineOptions(is_sequential=True))
    params = SamplingParams(max_new_tokens=60, temperature=0.0)
    for _ in engine.generate([5, 6, 7], params):
        break
    assert (engine.state().running, engine.state().waiting) == (0, 0)
    assert engine.store.cached_tokens == [5, 6, 7]
    list(engine.generate([5, 6, 8], params))
    assert engine.store.num_reused == 2


def test_tokens_that_the_model_does_not_have_are_refused(llama):
    engine = Engine(llama.ours())
    with pytest.raises(OptionError, match="token-range"):
        engine.submit([5, 97], SamplingParams(), print)


def scored(engine, given, count, *, num_top=0):
    """For each prompt its tokens with their log probabilities, the answer's, and the end."""
    params = SamplingParams(max_new_tokens=count, temperature=0.0, prompt_logprobs=num_top)
    told = [queue.SimpleQueue() for _ in given]
    engine.submit_all(
        [
            Request(prompt=prompt, params=params, on_event=one.put, on_prompt=one.put)
            for prompt, one in zip(given, told, strict=True)
        ]
    )
    found = [[one.get(timeout=60) for _ in range(count + 2)] for one in told]
    return [(prompt, tokens, end) for prompt, *tokens, end in found]


@pytest.mark.parametrize("pipeline", ["kernels", "static", "dynamic"])
def test_logprobs_of_a_prompt_are_those_of_the_model(llama, engine_of, pipeline):
    prompt = prompts(1, longest=60)[0] + list(range(3, 40))
    answers = engine_of(llama.ours(pipeline=pipeline), max_num_batched_tokens=9, max_num_seqs=2)
    answers.ask(prompt, 2)
    plain = answers.ids()
    found, tokens, end = scored(answers.engine, [prompt], 2, num_top=1)[0]
    with torch.no_grad():
        logits = llama.reference(torch.tensor([prompt])).logits[0]
    shares = torch.log_softmax(logits, -1)[:-1]
    wanted = shares[torch.arange(len(prompt) - 1), prompt[1:]]
    assert [token.id for token in found] == prompt[1:]
    given = [token.logprob for token in found]
    assert given == pytest.approx(wanted.tolist(), abs=1e-3)
    assert [token.top[0][0] for token in found] == shares.argmax(-1).tolist()
    assert [token.id for token in tokens] == plain
    assert end.num_cached_tokens == 0


def test_logprobs_of_a_prompt_that_is_put_back_come_once(fresh, engine_of):
    model = fresh()
    answers = engine_of(model, cache_bytes=9 * model.block_pool.store.block_bytes)
    given = [prompt * 2 for prompt in prompts(6, longest=10)]
    for prompt, told in zip(given, scored(answers.engine, given, 40), strict=True):
        found, tokens, _ = told
        assert [token.id for token in found] == prompt[1:]
        assert len(tokens) == 40
    assert answers.engine.state().num_preemptions > 0


def test_a_minimum_length_keeps_end_tokens_away(llama, engine_of):
    answers = engine_of(llama.ours())
    answers.ask([4, 5, 6], 4)
    first, second, *_ = answers.ids()
    ends = frozenset({first, second})
    answers.ask([4, 5, 6], 9, stop_token_ids=ends)
    assert answers.ids() == [first]
    answers.ask([4, 5, 6], 9, stop_token_ids=ends, min_new_tokens=3)
    assert not ends & set(answers.ids()[:3])


@pytest.mark.parametrize("pipeline", ["kernels", "static"])
def test_prefixes_are_shared_within_a_salt_only(llama, engine_of, pipeline):
    engine = engine_of(llama.ours(pipeline=pipeline)).engine
    prompt = list(range(3, 40))

    def cached(salt):
        events = queue.SimpleQueue()
        request = Request(
            prompt=prompt, params=SamplingParams(max_new_tokens=1), on_event=events.put,
            cache_salt=salt,
        )  # fmt: skip
        engine.submit_all([request])
        events.get(timeout=60)
        return events.get(timeout=60).num_cached_tokens

    assert [cached(salt) > 0 for salt in (None, "a", "a", "b")] == [False, False, True, False]


def test_several_requests_are_taken_together_or_not_at_all(talkative_model):
    engine = Engine(talkative_model, EngineOptions(max_num_seqs=1, max_waiting=2)).start()
    params = SamplingParams(max_new_tokens=30_000)
    one = Request(prompt=[5], params=params, on_event=lambda _: None)
    with pytest.raises(OptionError, match="request-count"):
        engine.submit_all([one] * 4)
    with pytest.raises(OptionError, match="empty-prompt"):
        engine.submit_all([one, replace(one, prompt=[])])
    engine.submit_all([one])
    with pytest.raises(ServerError, match="server-busy"):
        engine.submit_all([one] * 3)
    assert engine._unfinished == 1
    engine.submit_all([one] * 2)
    engine.close()

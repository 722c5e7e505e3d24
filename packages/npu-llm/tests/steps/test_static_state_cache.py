"""Models with states in the static pipeline: transformers' tokens, and what an interruption leaves.

What their caches share with those of the dynamic pipeline is in test_state_cache.py.
"""

import pytest
import torch

from npu_llm import NPUModelForCausalLM, OptionError, export
from npu_llm.steps.static_programs import StaticPrograms

KINDS = ["mamba", "mamba2", "lfm2", "falcon_h1", "qwen3_next"]
GREEDY = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}


def tokens_of(rows: int, count: int) -> torch.Tensor:
    return torch.randint(3, 97, (rows, count), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("name", KINDS)
def test_tokens_are_those_of_transformers_whatever_the_prompts_length(tiny, name):
    pair = tiny(name)
    for length in (1, 16, 33):
        ids = tokens_of(1, length)
        expected = pair.reference.generate(ids, **GREEDY).tolist()
        assert pair.ours(pipeline="static").generate(ids, **GREEDY).tolist() == expected


@pytest.mark.parametrize("name", KINDS)
def test_each_row_of_a_padded_batch_has_its_own_tokens(tiny, name):
    pair = tiny(name)
    ids, mask = tokens_of(2, 19), torch.ones(2, 19, dtype=torch.int64)
    mask[1, :6] = 0
    got = pair.ours(pipeline="static").generate(ids * mask, attention_mask=mask, **GREEDY)
    alone = [pair.reference.generate(one, **GREEDY) for one in (ids[:1], ids[1:, 6:])]
    assert got[0].tolist() == alone[0][0].tolist()
    assert got[1, 6:].tolist() == alone[1][0].tolist()


@pytest.mark.parametrize("pipeline", ["auto", "static"])
def test_beams_and_guesses_are_those_of_transformers(tiny, pipeline):
    pair = tiny("lfm2")
    ids = tokens_of(1, 9).repeat(1, 2)
    expected = pair.reference.generate(ids, num_beams=3, **GREEDY).tolist()
    model = pair.ours(pipeline=pipeline)
    assert model.generate(ids, num_beams=3, **GREEDY).tolist() == expected
    expected = pair.reference.generate(ids, **GREEDY).tolist()
    assert model.generate(ids, prompt_lookup_num_tokens=3, **GREEDY).tolist() == expected


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_an_interrupted_step_leaves_the_cache_as_it_was(tiny, name, monkeypatch):
    model = tiny(name).ours(pipeline="static")
    ids = tokens_of(2, 12)
    cache = model(ids[:, :6]).past_key_values
    get = StaticPrograms.get
    calls = []

    def interrupted(programs, sizes):
        calls.append(sizes)
        if len(calls) == 2:  # after the first row
            raise KeyboardInterrupt
        return get(programs, sizes)

    for action in (
        lambda: model(ids[:, 6:], past_key_values=cache),
        lambda: cache.crop(5),
    ):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(StaticPrograms, "get", interrupted)
            with pytest.raises(KeyboardInterrupt):
                action()
        assert (cache.get_seq_length(), cache.is_broken) == (6, False)
    got = model(ids[:, 6:], past_key_values=cache).logits
    torch.testing.assert_close(got, model(ids).logits[:, 6:], rtol=1e-4, atol=1e-4)


def test_a_model_without_keys_has_one_program_for_a_token_and_no_longest_prompt(tiny):
    pipeline = tiny("mamba").ours(pipeline="static")._pipeline
    assert pipeline.sizes.capacities == (0,)
    assert pipeline.sizes.capacity(100_000) == 0


def test_chunks_are_padded_and_leave_what_single_tokens_leave(tiny):
    model = tiny("lfm2").ours(pipeline="static")
    assert model._pipeline.sizes.chunks == (1, 16)
    ids = tokens_of(1, 21)
    whole = model(ids).past_key_values.tensors()  # 16, then 5 in 16
    cache = model.new_cache()
    for place in range(21):
        model(ids[:, place : place + 1], past_key_values=cache)
    alone = cache.tensors()
    assert whole.keys() == alone.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(tensor, alone[name], rtol=1e-4, atol=1e-4)


def test_weights_of_8_bits_are_near_those_of_torch(tiny):
    ids = tokens_of(1, 18)
    expected = tiny("mamba").reference(ids).logits.detach()
    got = tiny("mamba").ours("int8", "static")(ids).logits
    assert float((got - expected).norm() / expected.norm()) < 2e-2


def test_an_exported_folder_keeps_its_states(tiny, tmp_path):
    pair = tiny("lfm2")
    folder = export(pair.folder, tmp_path / "out", dtype="float32", pipeline="static")
    again = NPUModelForCausalLM.from_pretrained(folder, cache_dir=tmp_path / "cache")
    assert again.pipeline == "static"
    ids = tokens_of(1, 17)
    expected = pair.reference.generate(ids, **GREEDY).tolist()
    assert again.generate(ids, **GREEDY).tolist() == expected


def test_a_cache_refuses_rows_that_it_does_not_hold(tiny):
    model = tiny("mamba").ours(pipeline="static")
    cache = model(tokens_of(2, 4)).past_key_values
    with pytest.raises(OptionError) as caught:
        model(tokens_of(3, 1), past_key_values=cache)
    assert caught.value.code == "cache-rows"

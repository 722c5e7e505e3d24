"""Caches of models with states, in the pipeline that the device has and in the static one."""

import pytest
import torch

from npu_llm.errors import OptionError

STATES = ["mamba", "lfm2", "rwkv"]
in_both = pytest.mark.parametrize("pipeline", ["auto", "static"])


def tokens_of(rows: int, count: int) -> torch.Tensor:
    return torch.randint(3, 97, (rows, count), generator=torch.Generator().manual_seed(rows))


@in_both
@pytest.mark.parametrize("name", STATES)
def test_a_cut_cache_goes_on_as_if_it_had_never_held_more(tiny, name, pipeline):
    model = tiny(name).ours(pipeline=pipeline)
    ids = tokens_of(2, 14)
    cache = model(ids[:, :9], logits_to_keep=1).past_key_values
    for place in range(9, 12):
        model(ids[:, place : place + 1], past_key_values=cache)
    cache.crop(10)  # after a token
    assert cache.get_seq_length() == 10
    cache.crop(-4)  # within the first step: its tokens are read again
    got = model(ids[:, 6:], past_key_values=cache).logits
    expected = model(ids).logits[:, 6:]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@in_both
@pytest.mark.parametrize("name", STATES)
def test_a_padded_row_is_what_it_is_alone(tiny, name, pipeline):
    model = tiny(name).ours(pipeline=pipeline)
    ids = tokens_of(3, 8)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    got = model(ids * mask, attention_mask=mask).logits
    alone = model(ids[1:2, 3:]).logits[0]
    torch.testing.assert_close(got[1, 3:], alone, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[2], model(ids[2:]).logits[0], rtol=1e-4, atol=1e-4)


@in_both
@pytest.mark.parametrize("name", STATES)
def test_rows_change_places_with_their_states(tiny, name, pipeline):
    model = tiny(name).ours(pipeline=pipeline)
    ids = tokens_of(2, 7)
    cache = model(ids[:, :6]).past_key_values
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    got = model(ids[[1, 1, 0], 6:], past_key_values=cache).logits[:, 0]
    expected = model(ids).logits[[1, 1, 0], 6]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    cache.crop(5)  # after rows changed, everything is read again
    again = model(ids[[1, 1, 0], 5:], past_key_values=cache).logits[:, -1]
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name, pipeline", [("mamba", "auto"), ("mamba", "static"), ("lfm2", "static")]
)
def test_states_are_copied_out_and_back(tiny, name, pipeline):
    model = tiny(name).ours(pipeline=pipeline)
    ids = tokens_of(2, 9)
    saved = model(ids[:, :7]).past_key_values.tensors()
    cache = model.new_cache()
    cache.restore(saved)
    assert cache.get_seq_length() == 7
    got = model(ids[:, 7:], past_key_values=cache).logits
    torch.testing.assert_close(got, model(ids).logits[:, 7:], rtol=1e-4, atol=1e-4)
    cache.crop(3)
    got = model(ids[:, 3:], past_key_values=cache).logits
    torch.testing.assert_close(got, model(ids).logits[:, 3:], rtol=1e-4, atol=1e-4)


@in_both
def test_rows_are_copied_out_in_the_order_that_was_asked_for(tiny, pipeline):
    model = tiny("mamba").ours(pipeline=pipeline)
    ids = tokens_of(2, 7)
    cache = model(ids[:, :6]).past_key_values
    cache.reorder_cache(torch.tensor([1, 0]))
    other = model.new_cache()
    other.restore(cache.tensors())
    got = model(ids.flip(0)[:, 6:], past_key_values=other).logits
    torch.testing.assert_close(got, model(ids.flip(0)).logits[:, 6:], rtol=1e-4, atol=1e-4)


def test_keys_inside_the_program_are_not_copied(tiny):
    model = tiny("lfm2").ours()
    assert model(tokens_of(1, 4)).past_key_values.tensors() == {}


@in_both
def test_logits_come_in_the_order_that_is_asked_for(tiny, pipeline):
    model = tiny("mamba").ours(pipeline=pipeline)
    ids = tokens_of(2, 6)
    got = model(ids, logits_to_keep=torch.tensor([4, 0, 4])).logits
    torch.testing.assert_close(got, model(ids).logits[:, [4, 0, 4]], rtol=1e-4, atol=1e-4)


def test_an_interrupted_step_leaves_a_broken_cache(tiny, monkeypatch):
    model = tiny("mamba").ours()
    cache = model(tokens_of(1, 4)).past_key_values

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(cache), "_called", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(tokens_of(1, 1), past_key_values=cache)
    assert cache.is_broken
    with pytest.raises(OptionError) as caught:
        model(tokens_of(1, 1), past_key_values=cache)
    assert caught.value.code == "cache-broken"
    cache.reset()
    assert model(tokens_of(1, 4), past_key_values=cache).logits.shape == (1, 4, 97)

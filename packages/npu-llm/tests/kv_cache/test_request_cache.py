import pytest
import torch

from npu_llm.errors import OptionError
from npu_llm.kv_cache.cache import StepCache
from npu_llm.kv_cache.request_cache import SessionCache


@pytest.fixture
def model(llama, each_openvino_pipeline):
    return llama.ours(pipeline=each_openvino_pipeline)


@pytest.fixture
def filled(model):
    """filled(batch, tokens): our Llama's cache after one step of these."""

    def make(batch: int, tokens: int) -> StepCache:
        ids = torch.arange(3, 3 + batch * tokens).view(batch, tokens)
        return model(ids).past_key_values

    return make


def test_length_counts_tokens(model):
    cache = model.new_cache()
    assert (cache.get_seq_length(), cache.is_initialized) == (0, False)
    model(torch.tensor([[3, 4, 5, 6, 7], [3, 4, 5, 6, 8]]), past_key_values=cache)
    model(torch.tensor([[3], [4]]), past_key_values=cache)
    assert cache.get_seq_length() == 6
    cache.reset()
    assert cache.get_seq_length() == 0


def test_rows_are_chosen_for_one_step_and_choices_add_up(filled, model):
    cache = filled(3, 5)
    assert cache.next_rows(3).tolist() == [0, 1, 2]
    cache.reorder_cache(torch.tensor([2, 2, 0]))
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    assert cache.next_rows(3).tolist() == [0, 2, 2]
    model(torch.tensor([[3], [4], [5]]), past_key_values=cache)
    assert cache.next_rows(3).tolist() == [0, 1, 2]


def test_one_row_is_continued_several_times(model, logit_tolerance):
    near = logit_tolerance
    ids = torch.tensor([[5, 6, 7]])
    cache = model(ids).past_key_values
    cache.batch_repeat_interleave(2)
    step = model(torch.tensor([[8], [9]]), past_key_values=cache)
    for row, token in enumerate((8, 9)):
        alone = model(torch.tensor([[5, 6, 7, token]])).logits[0, -1]
        torch.testing.assert_close(step.logits[row, -1], alone, rtol=near, atol=near)


@pytest.mark.parametrize("rows", [[3], [-1], [0, 5, 0]])
def test_rows_that_are_not_there(filled, rows):
    cache = filled(3, 5)
    with pytest.raises(OptionError) as caught:
        cache.reorder_cache(torch.tensor(rows))
    assert caught.value.code == "cache-rows"
    assert str(rows) in str(caught.value)


def test_batch_that_does_not_continue_the_cache(filled):
    cache = filled(3, 5)
    with pytest.raises(OptionError, match="2 rows for a cache of 3") as caught:
        cache.next_rows(2)
    assert caught.value.code == "cache-rows"


def test_a_cut_cache_goes_on_as_if_it_had_never_held_more(
    tiny, sampled_architecture, openvino_pipeline, logit_tolerance
):
    near = max(1e-3, logit_tolerance)
    model = tiny(sampled_architecture).ours(pipeline=openvino_pipeline)
    ids = torch.randint(3, 97, (2, 30), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    expected = model(ids, attention_mask=mask).logits
    # Windows of 8 tokens: holes enough to shift them.
    cache = model(ids[:, :20], attention_mask=mask[:, :20]).past_key_values
    cache.crop(12)
    model(ids[:, 12:17], attention_mask=mask[:, :17], past_key_values=cache)
    cache.crop(-3)
    hidden = 11 if openvino_pipeline == "dynamic" else 0  # forgotten slots are overwritten
    assert (cache.get_seq_length(), cache.hidden_tokens) == (14, hidden)
    rest = model(ids[:, 14:], attention_mask=mask, past_key_values=cache).logits
    torch.testing.assert_close(rest[0], expected[0, 14:], rtol=near, atol=near)
    torch.testing.assert_close(rest[1], expected[1, 14:], rtol=near, atol=near)


def test_crop_counts_as_in_transformers(filled):
    cache = filled(1, 5)
    for argument, left in ((0, 5), (9, 5), (4, 4), (-1, 3), (-9, 0)):
        cache.crop(argument)
        assert cache.get_seq_length() == left


def test_crop_where_places_cannot_be_told_apart(llama):
    cache = SessionCache(
        llama.ours(pipeline="dynamic")._pipeline.program.session(), relocation=None
    )
    llama.ours(pipeline="dynamic")(torch.tensor([[3, 4, 5]]), past_key_values=cache)
    assert not cache.is_croppable
    with pytest.raises(OptionError, match="1 of 3 tokens") as caught:
        cache.crop(1)
    assert caught.value.code == "not-croppable"


def test_a_step_that_is_broken_off_leaves_a_cache_that_says_so(llama, monkeypatch):
    model = llama.ours(pipeline="dynamic")
    cache = model(torch.tensor([[3, 4, 5]])).past_key_values

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache.session, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model(torch.tensor([[6]]), past_key_values=cache)
    monkeypatch.undo()
    assert not cache.is_croppable
    with pytest.raises(OptionError) as caught:
        model(torch.tensor([[6]]), past_key_values=cache)
    assert caught.value.code == "cache-broken"
    cache.reset()
    model(torch.tensor([[6]]), past_key_values=cache)


def test_what_a_program_does_not_give_back(filled):
    with pytest.raises(OptionError, match="update") as caught:
        filled(1, 2).update(1)
    assert caught.value.code == "cache-in-program"


STATES = ["mamba", "lfm2", "rwkv"]
in_both = pytest.mark.parametrize("pipeline", ["auto", "static"])


def tokens_of(rows: int, count: int) -> torch.Tensor:
    return torch.randint(3, 97, (rows, count), generator=torch.Generator().manual_seed(rows))


@in_both
@pytest.mark.parametrize("name", STATES)
def test_a_cut_cache_of_states_goes_on_as_if_it_had_never_held_more(tiny, name, pipeline):
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

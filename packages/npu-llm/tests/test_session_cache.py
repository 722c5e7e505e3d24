import pytest
import torch

from npu_llm.errors import OptionError
from npu_llm.session_cache import SessionCache


@pytest.fixture
def cache(llama):
    return SessionCache(llama.ours()._program.session())


def test_length_counts_tokens(cache):
    assert (cache.get_seq_length(), cache.is_initialized) == (0, False)
    cache.advance(2, 5)
    cache.advance(2, 1)
    assert cache.get_seq_length() == 6
    cache.reset()
    assert cache.get_seq_length() == 0


def test_rows_are_chosen_for_one_step_and_choices_add_up(cache):
    cache.advance(3, 5)
    assert cache.next_rows(3).tolist() == [0, 1, 2]
    cache.reorder_cache(torch.tensor([2, 2, 0]))
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    assert cache.next_rows(3).tolist() == [0, 2, 2]
    cache.advance(3, 1)
    assert cache.next_rows(3).tolist() == [0, 1, 2]


def test_one_row_is_continued_several_times(llama):
    model = llama.ours()
    ids = torch.tensor([[5, 6, 7]])
    cache = model(ids).past_key_values
    cache.batch_repeat_interleave(2)
    step = model(torch.tensor([[8], [9]]), past_key_values=cache)
    for row, token in enumerate((8, 9)):
        alone = model(torch.tensor([[5, 6, 7, token]])).logits[0, -1]
        torch.testing.assert_close(step.logits[row, -1], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [[3], [-1], [0, 5, 0]])
def test_rows_that_are_not_there(cache, rows):
    cache.advance(3, 5)
    with pytest.raises(OptionError) as caught:
        cache.reorder_cache(torch.tensor(rows))
    assert caught.value.code == "cache-rows"
    assert str(rows) in str(caught.value)


def test_batch_that_does_not_continue_the_cache(cache):
    cache.advance(3, 5)
    with pytest.raises(OptionError, match="2 rows for a cache of 3") as caught:
        cache.next_rows(2)
    assert caught.value.code == "cache-rows"


@pytest.mark.parametrize("what", ["crop", "update"])
def test_what_a_program_does_not_give_back(cache, what):
    assert not cache.is_croppable
    with pytest.raises(OptionError, match=what) as caught:
        getattr(cache, what)(1)
    assert caught.value.code == "cache-in-program"

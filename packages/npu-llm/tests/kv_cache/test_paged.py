import gc

import pytest
import torch

from npu_llm.errors import ContextError, OptionError
from npu_llm.kv_cache.blocks import BlockPool
from npu_llm.kv_cache.paged import PagedCache


def test_each_row_sees_its_own_tokens(sequences, expected_logits):
    logits = sequences.step([[1, 2, 3], [4, 5, 6]])
    assert torch.equal(logits[0, 1], expected_logits([1, 2]))
    assert torch.equal(logits[1, 2], expected_logits([4, 5, 6]))
    logits = sequences.step([[7], [8]], kept=1)
    assert torch.equal(logits[0, 0], expected_logits([1, 2, 3, 7]))
    assert torch.equal(logits[1, 0], expected_logits([4, 5, 6, 8]))


@pytest.mark.parametrize("kept", [[2, 0], [-1], [1, 1, 0], []])
def test_logits_come_in_the_order_asked_for(sequences, expected_logits, kept):
    logits = sequences.step([[1, 2, 3], [4, 5, 6]], kept=torch.tensor(kept, dtype=torch.int64))
    assert logits.shape == (2, len(kept), 31)
    for place, token in enumerate(kept):
        ids = [4, 5, 6][: token % 3 + 1]
        assert torch.equal(logits[1, place], expected_logits(ids))


def test_padding_takes_no_slot_and_has_no_logits(sequences, store, expected_logits):
    logits = sequences.step([[0, 0, 1, 2], [3, 4, 5, 6]], mask=[[0, 0, 1, 1], [1, 1, 1, 1]])
    assert store.rows == [6]
    assert not logits[0, :2].any()
    assert torch.equal(logits[0, 3], expected_logits([1, 2]))
    assert torch.equal(logits[1, 3], expected_logits([3, 4, 5, 6]))
    logits = sequences.step([[7], [8]])
    assert torch.equal(logits[0, 0], expected_logits([1, 2, 7]))
    sequences.cache.crop(3)  # columns, of which row 0 has one token
    sequences.mask = sequences.mask[:, :3]
    logits = sequences.step([[9], [9]])
    assert torch.equal(logits[0, 0], expected_logits([1, 9]))
    assert torch.equal(logits[1, 0], expected_logits([3, 4, 5, 9]))


def test_a_step_of_padding_only_runs_nothing(sequences, store, expected_logits):
    assert not sequences.step([[0, 0]], mask=[[0, 0]]).any()
    assert store.rows == []
    assert torch.equal(sequences.step([[5]])[0, 0], expected_logits([5]))


def test_right_padding(sequences, expected_logits):
    sequences.step([[1, 2, 0], [3, 4, 5]], mask=[[1, 1, 0], [1, 1, 1]])
    logits = sequences.step([[6], [7]])
    assert torch.equal(logits[0, 0], expected_logits([1, 2, 6]))


def test_positions_are_those_given(sequences, expected_logits):
    logits = sequences.step([[1, 2]], positions=torch.tensor([[5, 9]]))
    assert torch.equal(logits[0, 1], expected_logits([1, 2], [5, 9]))


def test_a_position_that_the_model_does_not_have(sequences):
    with pytest.raises(OptionError, match="got 1000") as caught:
        sequences.step([[1, 2]], positions=torch.tensor([[5, 1000]]))
    assert caught.value.code == "position-range"


def test_a_mask_that_hides_what_was_read(sequences):
    sequences.step([[1, 2, 3]])
    sequences.mask[0, 1] = 0
    with pytest.raises(OptionError, match="token 1") as caught:
        sequences.step([[4]])
    assert caught.value.code == "changed-mask"


@pytest.mark.parametrize("tokens", [511, 512, 513, 1100])
def test_long_prompts_run_in_pieces(sequences, store, expected_logits, tokens):
    ids = torch.arange(2 * tokens).view(2, tokens) % 31
    positions = torch.arange(tokens).expand(2, tokens) % 1000
    logits = sequences.step(ids, kept=torch.tensor([0, tokens - 1]), positions=positions)
    assert max(store.rows) <= 512
    assert sum(store.rows) == 2 * tokens
    for row in range(2):
        expected = expected_logits(ids[row].tolist(), positions[row].tolist())
        assert torch.equal(logits[row, 1], expected)
        assert torch.equal(logits[row, 0], expected_logits(ids[row, :1].tolist()))


def test_beams_share_what_they_begin_with(sequences, store, expected_logits):
    ids = list(range(1, 21))
    sequences.step([ids])
    sequences.cache.batch_repeat_interleave(3)
    sequences.mask = sequences.mask.expand(3, -1)
    assert torch.equal(sequences.step([[1], [2], [3]])[1, 0], expected_logits([*ids, 2]))
    assert (sequences.pool.used, store.copies) == (4, 2)  # one shared, and one each
    sequences.cache.reorder_cache(torch.tensor([2, 2, 0]))
    logits = sequences.step([[4], [5], [6]])
    assert torch.equal(logits[0, 0], expected_logits([*ids, 3, 4]))
    assert torch.equal(logits[1, 0], expected_logits([*ids, 3, 5]))
    assert torch.equal(logits[2, 0], expected_logits([*ids, 1, 6]))
    assert sequences.pool.used == 4


def test_rows_change_places_without_a_copy(sequences, store, expected_logits):
    sequences.step([[0, 1, 2], [3, 4, 5]], mask=[[0, 1, 1], [1, 1, 1]])
    sequences.cache.reorder_cache(torch.tensor([1, 0]))
    sequences.mask = sequences.mask.flip(0)
    logits = sequences.step([[6], [7]])
    assert torch.equal(logits[0, 0], expected_logits([3, 4, 5, 6]))
    assert torch.equal(logits[1, 0], expected_logits([1, 2, 7]))
    assert store.copies == 0


@pytest.mark.parametrize("piece", [1, 2])
def test_an_interrupted_step_changes_nothing(sequences, store, expected_logits, piece):
    sequences.step([[1, 2, 3]])
    store.failing_step = 1 + piece
    with pytest.raises(KeyboardInterrupt):
        sequences.step([[5] * 600])
    assert not sequences.cache.is_broken
    assert (sequences.cache.get_seq_length(), sequences.pool.used) == (3, 1)
    assert torch.equal(sequences.step([[4]])[0, 0], expected_logits([1, 2, 3, 4]))


def test_an_interrupted_first_step_leaves_an_empty_cache(sequences, store, expected_logits):
    store.failing_step = 1
    with pytest.raises(KeyboardInterrupt):
        sequences.step([[1, 2, 3], [1, 2, 3]])
    assert sequences.pool.used == 0
    assert torch.equal(sequences.step([[4]])[0, 0], expected_logits([4]))


def test_an_exhausted_pool_leaves_the_cache_as_it_was(limited, beside, expected_logits):
    first = limited(4)
    second = beside(first)
    first.step([list(range(1, 31))])
    second.step([[7]])
    with pytest.raises(ContextError) as caught:
        second.step([[9] * 40])
    assert caught.value.code == "cache-blocks"
    assert (second.cache.get_seq_length(), first.pool.used) == (1, 3)
    assert torch.equal(second.step([[8]])[0, 0], expected_logits([7, 8]))
    first.cache.reset()
    second.step([[9] * 40])


def test_a_cache_that_is_garbage_gives_its_blocks_back(sequences):
    pool = sequences.pool
    sequences.step([list(range(1, 31))])
    assert pool.used == 2
    del sequences.cache
    gc.collect()
    assert pool.used == 0


def test_saved_contents_are_restored_with_what_they_share(sequences, beside, expected_logits):
    ids = [[0, *range(1, 25)]] * 2
    sequences.step(ids, mask=[[0] + [1] * 24] * 2)
    sequences.step([[26], [27]])
    sequences.cache.reorder_cache(torch.tensor([1, 1, 0]))
    saved = {name: tensor.clone() for name, tensor in sequences.cache.tensors().items()}
    other = beside(sequences)
    other.step([[1] * 50])
    other.cache.restore(saved)
    sequences.cache.reset()
    assert other.cache.get_seq_length() == 26
    assert sequences.pool.used == 4
    other.mask = torch.tensor([[0] + [1] * 25] * 3)
    logits = other.step([[1], [2], [3]])
    for row, last in enumerate([[27, 1], [27, 2], [26, 3]]):
        assert torch.equal(logits[row, 0], expected_logits([*range(1, 25), *last]))


def test_contents_of_another_layout_are_refused(sequences):
    sequences.step([[1, 2]])
    saved = sequences.cache.tensors()
    with pytest.raises(RuntimeError):
        sequences.cache.restore({**saved, "blocks": saved["blocks"][:, 1:]})
    assert sequences.cache.get_seq_length() == 0


def test_an_empty_cache_has_no_contents(sequences):
    assert sequences.cache.tensors() == {}


def test_a_batch_that_does_not_continue_the_cache(sequences):
    sequences.step([[1, 2], [3, 4]])
    sequences.mask = sequences.mask[:1]
    with pytest.raises(OptionError) as caught:
        sequences.step([[5]])
    assert caught.value.code == "cache-rows"


def test_padding_behind_a_token_where_distances_count(store):
    cache = PagedCache(BlockPool(store), vocabulary=31, positions=None, counts_distances=True)
    values = {
        "input_ids": torch.tensor([[1, 2, 3]]),
        "attention_mask": torch.tensor([[1, 0, 1]]),
        "position_ids": torch.tensor([[0, 0, 1]]),
        "logits_to_keep": torch.tensor([2]),
    }
    with pytest.raises(OptionError) as caught:
        cache.step(values, "cpu")
    assert caught.value.code == "padding-inside"
    left = {**values, "attention_mask": torch.tensor([[0, 1, 1]])}
    assert cache.step(left, "cpu").shape == (1, 1, 31)

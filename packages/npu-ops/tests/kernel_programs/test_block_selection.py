"""Block selection in torch, case by case."""

import torch

from npu_ops.kernel_programs.sparse_attention import SparseAttention, key_bounds, select_blocks


def test_bounds_are_those_of_no_key_less_and_no_more(generator):
    keys = torch.randn(48, 2, 5, generator=generator)
    least, most = key_bounds(keys)
    blocks = keys.view(3, 16, 2, 5)
    assert (least <= blocks.amin(1)).all()
    assert (most >= blocks.amax(1)).all()
    assert torch.equal(least, least.bfloat16().float())
    torch.testing.assert_close(least, blocks.amin(1), rtol=2**-7, atol=0)
    torch.testing.assert_close(most, blocks.amax(1), rtol=2**-7, atol=0)


def test_the_block_with_the_best_key_is_chosen_beside_the_first_and_the_newest():
    keys = torch.zeros(170, 2, 4)
    keys[70, 0] = torch.tensor([0.0, -3.0, 0.0, 0.0])
    keys[100, 1] = torch.tensor([2.0, 0.0, 0.0, 0.0])
    queries = torch.tensor([[0.0, -1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    chosen = select_blocks(queries, keys, SparseAttention(top_k=64))
    assert chosen.tolist() == [[0, 4, 9, 10], [0, 6, 9, 10]]


def test_a_head_with_great_scores_does_not_choose_for_the_others():
    keys = torch.zeros(170, 1, 2)
    keys[40] = torch.tensor([1.0, 0.0])
    keys[80] = torch.tensor([0.99, 0.0])
    keys[120] = torch.tensor([0.0, 1.0])
    queries = torch.tensor([[1000.0, 0.0], [0.0, 1.0]])
    chosen = select_blocks(queries, keys, SparseAttention(top_k=80))
    assert chosen.tolist() == [[0, 2, 7, 9, 10]]


def test_of_equal_blocks_the_newest_are_chosen():
    chosen = select_blocks(torch.ones(1, 3), torch.ones(200, 1, 3), SparseAttention(top_k=80))
    assert chosen.tolist() == [[0, 9, 10, 11, 12]]

import torch

from npu_llm.steps.slots import Slots


def test_without_holes_slots_are_positions():
    slots = Slots()
    slots.append(3)
    assert (slots.held, slots.length, slots.hidden) == (3, 3, 0)
    assert slots.key_positions(2).tolist() == [0, 1, 2, 3, 4]
    mask = torch.ones(1, 5, dtype=torch.int64)
    assert slots.mask(mask, "positions") is mask


def test_cropped_tokens_are_hidden_and_the_next_go_behind_them():
    slots = Slots()
    slots.append(5)
    slots.crop(2)
    slots.append(1)
    assert (slots.held, slots.length, slots.hidden) == (6, 3, 3)
    # Tokens 0 and 1, three holes that point behind all, token 2, and the new one.
    assert slots.key_positions(1).tolist() == [0, 1, 6, 6, 6, 2, 3]
    slots.crop(2)
    assert slots.key_positions(1).tolist() == [0, 1, 6, 6, 6, 6, 2]


def test_masks_by_position_and_by_slot():
    slots = Slots()
    slots.append(3)
    slots.crop(2)
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    assert slots.mask(mask, "positions").tolist() == [[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    assert slots.mask(mask, "mask").tolist() == [[0, 1, 0, 1, 1], [1, 1, 0, 1, 0]]

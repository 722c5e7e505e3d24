import pytest
import torch

from npu_llm.errors import OptionError
from npu_llm.kv_cache.cache import Slots, check_prompt, run_step, step_inputs
from npu_runtime import observe


class Stub:
    """A cache that returns its arguments."""

    def step(self, values, device):
        return values["input_ids"].float().to(device)


@pytest.mark.parametrize("past, phase", [(0, "prefill"), (7, "decode")])
def test_step_is_one_span(past, phase):
    spans = []
    observe.add_listener(spans.extend)
    try:
        ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
        result = run_step(Stub(), {"input_ids": ids}, past=past, device="cpu")
    finally:
        observe.remove_listener(spans.extend)
    assert result.tolist() == ids.tolist()
    (span,) = spans
    assert (span.category, span.name) == (phase, f"{phase} 3 tokens")
    assert span.args == {"batch": 2, "tokens": 3, "past": past}


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


def make(input_ids, past=0, **changes):
    plain = {"attention_mask": None, "position_ids": None, "logits_to_keep": 0}
    return step_inputs(input_ids, past=past, vocabulary=50, **{**plain, **changes})


IDS = torch.tensor([[3, 4, 5], [6, 7, 8]])


def test_defaults():
    values = make(IDS, past=2)
    assert values["attention_mask"].tolist() == [[1] * 5] * 2
    assert values["position_ids"].tolist() == [[2, 3, 4]] * 2
    assert values["logits_to_keep"].tolist() == [0, 1, 2]


def test_positions_count_what_is_not_padding():
    mask = torch.tensor([[0, 0, 1], [1, 1, 1]])
    assert make(IDS, attention_mask=mask)["position_ids"].tolist() == [[0, 0, 0], [0, 1, 2]]


def test_all_is_contiguous_int64():
    mask = torch.ones(3, 2, dtype=torch.bool).T
    values = make(
        IDS.int(), attention_mask=mask, position_ids=torch.arange(3, dtype=torch.int32)[None]
    )
    assert all(value.dtype is torch.int64 and value.is_contiguous() for value in values.values())
    assert values["position_ids"].shape == (2, 3)


@pytest.mark.parametrize("kept, indices", [(1, [2]), (2, [1, 2]), (9, [0, 1, 2])])
def test_last_logits(kept, indices):
    assert make(IDS, logits_to_keep=kept)["logits_to_keep"].tolist() == indices
    by_index = make(IDS, logits_to_keep=torch.tensor([-1, 0]))
    assert by_index["logits_to_keep"].tolist() == [2, 0]


@pytest.mark.parametrize(
    "ids, changes, code, quoted",
    [
        (torch.tensor([1, 2]), {}, "step-shape", "(2,)"),
        (torch.empty(1, 0, dtype=torch.int64), {}, "step-shape", "(1, 0)"),
        (IDS.float(), {}, "step-dtype", "torch.float32"),
        (IDS.bool(), {}, "step-dtype", "torch.bool"),
        ([[1, 2]], {}, "step-dtype", "list"),
        (IDS, {"attention_mask": [[1, 1, 1]]}, "step-dtype", "attention_mask"),
        (torch.tensor([[1, 50]]), {}, "token-range", "got 50"),
        (torch.tensor([[-1, 2]]), {}, "token-range", "got -1"),
        (IDS, {"attention_mask": torch.ones(2, 4)}, "step-shape", "(2, 4)"),
        (IDS, {"position_ids": torch.zeros(2, 2)}, "step-shape", "(2, 2)"),
        (IDS, {"logits_to_keep": torch.tensor([3])}, "kept-range", "[3]"),
    ],
)
def test_what_does_not_fit_is_an_error(ids, changes, code, quoted):
    with pytest.raises(OptionError) as caught:
        make(ids, **changes)
    assert caught.value.code == code
    assert quoted in str(caught.value)


@pytest.mark.parametrize(
    "ids, mask, past, code",
    [
        (torch.tensor([1, 2]), None, 0, "step-shape"),
        (IDS.float(), None, 0, "step-dtype"),
        (IDS, torch.ones(2, 4), 0, "step-shape"),
        (IDS, torch.ones(3), 0, "step-shape"),
        (IDS, torch.ones(2, 4), 2, "step-shape"),
    ],
)
def test_prompt_that_does_not_fit_is_an_error(ids, mask, past, code):
    with pytest.raises(OptionError) as caught:
        check_prompt(ids, mask, past=past)
    assert caught.value.code == code


@pytest.mark.parametrize("mask", [None, torch.ones(2, 3), torch.ones(2, 5)])
def test_mask_of_a_continued_prompt_covers_it_or_the_cache_too(mask):
    check_prompt(IDS, mask, past=2)


def test_prompt_may_be_nothing():
    check_prompt(None, None, past=0)

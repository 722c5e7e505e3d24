import pytest
import torch

from npu_llm.errors import OptionError
from npu_llm.steps.step_inputs import check_prompt, step_inputs


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

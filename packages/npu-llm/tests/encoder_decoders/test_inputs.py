import pytest
import torch

from npu_llm.encoder_decoders.inputs import check_encoder_inputs, check_tokens
from npu_llm.errors import OptionError


@pytest.mark.parametrize(
    "ids, code, quoted",
    [
        ([[1, 2]], "step-dtype", "list"),
        (torch.ones(2, 3), "step-dtype", "float32"),
        (torch.ones(3, dtype=torch.int64), "step-shape", r"\(3,\)"),
        (torch.ones(2, 0, dtype=torch.int64), "step-shape", r"\(2, 0\)"),
        (torch.tensor([[3, 97]]), "token-range", "97"),
        (torch.tensor([[3, -1]]), "token-range", "-1"),
    ],
)
def test_tokens_that_do_not_fit(ids, code, quoted):
    with pytest.raises(OptionError, match=quoted) as caught:
        check_tokens("input_ids", ids, 97)
    assert caught.value.code == code


def test_mask_is_ones_by_default_and_of_the_tokens_shape():
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    found = check_encoder_inputs(
        "input_ids", {"input_ids": ids}, taken={"attention_mask"}, limit=3, vocabulary=9
    )
    assert found["attention_mask"].tolist() == [[1, 1, 1]] * 2
    with pytest.raises(OptionError, match=r"\(2, 4\)") as caught:
        check_encoder_inputs(
            "input_ids",
            {"input_ids": ids, "attention_mask": torch.ones(2, 4)},
            taken={"attention_mask"},
            limit=3,
            vocabulary=9,
        )
    assert caught.value.code == "step-shape"

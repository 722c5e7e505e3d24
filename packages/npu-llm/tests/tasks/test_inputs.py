"""What a program would read without a word is refused with a code."""

from __future__ import annotations

import pytest
import torch

from npu_llm.errors import ContextError, OptionError


@pytest.fixture(scope="module")
def encoder(compiled):
    return compiled("FeatureExtraction", "bert")


def test_mask_and_types_may_be_omitted(encoder):
    ids = torch.tensor([[2, 7, 9, 3]])
    whole = encoder(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert torch.equal(encoder(ids).last_hidden_state, whole.last_hidden_state)


@pytest.mark.parametrize(
    "given, code, received",
    [
        ({"input_ids": torch.tensor([[2, 32, 3]])}, "token-range", "32"),
        ({"input_ids": torch.tensor([[2, -1, 3]])}, "token-range", "-1"),
        ({"input_ids": torch.tensor([[2.0, 3.0]])}, "step-dtype", "float32"),
        ({"input_ids": torch.tensor([2, 3])}, "step-shape", "(2,)"),
        ({}, "input-missing", "none"),
        ({"input_ids": torch.tensor([[2, 3]]), "pixel_values": 1}, "input-name", "pixel_values"),
        (
            {"input_ids": torch.tensor([[2, 3]]), "output_attentions": True},
            "input-name", "output_attentions",
        ),
        (
            {"input_ids": torch.tensor([[2, 3]]), "token_type_ids": torch.tensor([[0, 2]])},
            "token-range", "2",
        ),
    ],
)  # fmt: skip
def test_tokens_that_do_not_fit_are_refused(encoder, given, code, received):
    with pytest.raises(OptionError) as caught:
        encoder(**given)
    assert caught.value.code == code
    assert received in str(caught.value)


def test_text_longer_than_the_model_takes_is_refused(encoder):
    with pytest.raises(ContextError) as caught:
        encoder(torch.full((1, 41), 7))
    assert caught.value.code == "context-overflow"
    assert "40" in str(caught.value)
    assert "41" in str(caught.value)


def test_sound_with_nan_is_refused(compiled):
    model = compiled("CTC", "wav2vec2-layer")
    sound = torch.randn(2, 900)
    sound[1, 70] = torch.nan
    with pytest.raises(OptionError, match="NaN") as caught:
        model(input_values=sound)
    assert caught.value.code == "input-not-finite"


@pytest.mark.parametrize("shape", [(1, 1, 32, 32), (3, 32, 32)])
def test_image_without_its_channels_is_refused(compiled, shape):
    model = compiled("ImageClassification", "vit")
    with pytest.raises(OptionError) as caught:
        model(pixel_values=torch.randn(shape))
    assert caught.value.code == "image-channels"
    assert str(shape) in str(caught.value)

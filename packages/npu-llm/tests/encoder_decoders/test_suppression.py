"""Suppressed tokens get the scores that transformers' processors give them."""

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper
from transformers.generation import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from npu_llm.encoder_decoders.suppression import by_index

# One that is not in the vocabulary, as Whisper's lists have for a smaller one, and one twice.
_TOKENS = [3, 0, 96, 3, 200]


@pytest.mark.parametrize("length", [1, 4])
def test_scores_are_those_of_transformers(length):
    processors = LogitsProcessorList(
        [
            SuppressTokensLogitsProcessor(_TOKENS),
            SuppressTokensAtBeginLogitsProcessor([7, 8], begin_index=4),
            TemperatureLogitsWarper(0.5),
        ]
    )
    ids, scores = torch.ones(2, length, dtype=torch.int64), torch.randn(2, 97)
    given = scores.clone()
    found = by_index(processors)(ids, given)
    assert torch.equal(found, processors(ids, scores))
    assert torch.equal(given, scores)

"""encode: order, batches, truncation, and MiniLM against transformers."""

from __future__ import annotations

import pytest
import torch
import transformers

from npu_llm import NPUModelForFeatureExtraction
from npu_llm.errors import ContextError, OptionError
from npu_llm.tasks.embedding import _batches

TEXTS = ["the cat sat", "where is bob", "anna lives in paris and bob lives in london", "mat", ""]


@pytest.fixture(scope="module")
def encoder(compiled):
    return compiled("FeatureExtraction", "bert")


def test_vectors_do_not_depend_on_the_batch(encoder):
    alone = torch.stack([encoder.encode(text) for text in TEXTS])
    for size in (1, 2, 64):
        assert torch.allclose(encoder.encode(TEXTS, batch_size=size), alone, atol=1e-5)


def test_normalized_vectors_have_length_one(encoder):
    lengths = encoder.encode(TEXTS, normalize=True).norm(dim=1)
    assert torch.allclose(lengths, torch.ones(len(TEXTS)), atol=1e-6)
    assert not torch.allclose(encoder.encode(TEXTS, normalize=False).norm(dim=1), lengths)


def test_long_text_is_cut_or_refused(encoder):
    text = "cat dog " * 40
    cut = "cat dog " * 19
    assert torch.allclose(encoder.encode(text), encoder.encode(cut), atol=1e-6)
    with pytest.raises(ContextError, match="82") as caught:
        encoder.encode(text, truncate=False)
    assert caught.value.code == "context-overflow"


def test_batch_of_none_is_refused(encoder):
    with pytest.raises(OptionError, match="0") as caught:
        encoder.encode(TEXTS, batch_size=0)
    assert caught.value.code == "batch-size"


def test_batches_hold_each_row_once_with_little_padding():
    lengths = [3, 90, 4, 88, 30, 31, 3]
    batches = list(_batches(lengths, 3))
    assert sorted(row for batch in batches for row in batch) == list(range(7))
    assert batches == [[1, 3], [5, 4], [2], [0, 6]] or all(
        sum(lengths[row] for row in batch) >= 0.88 * len(batch) * lengths[batch[0]]
        for batch in batches
    )


@pytest.mark.parametrize(
    "dtype, least",
    [("float32", 0.99999), pytest.param("int8", 0.999, marks=pytest.mark.long)],
)
def test_minilm_equals_transformers(minilm, shared, dtype, least):
    texts = ["The cat sits outside.", "A man is playing a guitar by the bay", "Grüße, 世界!"]
    model = shared.load(NPUModelForFeatureExtraction, minilm, dtype=dtype)
    tokens = model.tokenizer(texts, padding=True, return_tensors="pt")
    reference = transformers.AutoModel.from_pretrained(minilm, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = reference(**tokens).last_hidden_state
    weights = tokens["attention_mask"][:, :, None].float()
    expected = (hidden * weights).sum(1) / weights.sum(1)
    found = model.encode(texts)
    assert float(torch.nn.functional.cosine_similarity(found, expected).min()) >= least
    assert torch.allclose(found.norm(dim=1), torch.ones(3), atol=1e-5)  # as modules.json records

"""SentenceTransformer with our encoder, compared with its torch backend, on real weights."""

from __future__ import annotations

import pytest
import torch

from npu_llm import NPUModelForFeatureExtraction

pytestmark = pytest.mark.filterwarnings("ignore")  # of that library, about its models


@pytest.mark.parametrize(
    "dtype, least",
    [("float32", 0.99999), pytest.param("int8", 0.999, marks=pytest.mark.long)],
)
def test_minilm_equals_sentence_transformers(minilm, shared, dtype, least):
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(
        str(minilm), device="cpu"
    )
    from npu_llm.tasks.sentence_model import SentenceTransformer

    shared.load(NPUModelForFeatureExtraction, minilm, dtype=dtype)
    kept = {"dtype": dtype, "cache_dir": str(shared.cache_dir(minilm))}
    ours = SentenceTransformer(str(minilm), model_kwargs=kept)
    texts = ["The cat sits outside.", "A man is playing a guitar by the bay", "Grüße, 世界!"]
    found, expected = (
        torch.as_tensor(model.encode(texts, convert_to_numpy=True)) for model in (ours, theirs)
    )
    assert float(torch.nn.functional.cosine_similarity(found, expected).min()) >= least
    assert torch.allclose(ours.similarity(found, found).diagonal(), torch.ones(3), atol=1e-5)

"""rerank: the scores of transformers' cross-encoder, best first."""

from __future__ import annotations

import pytest
import torch
import transformers

from npu_llm import NPUModelForSequenceClassification
from npu_llm.errors import ModelError

DOCUMENTS = ["bob lives in london", "the cat sat on the mat", "anna", "it was in paris " * 20]


@pytest.fixture
def cross_encoder(checkpoint, tmp_path):
    folder = tmp_path / "cross"
    made = transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoint("bert", transformers.AutoModelForSequenceClassification),
        num_labels=1, ignore_mismatched_sizes=True,
    )  # fmt: skip
    made.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        checkpoint("bert", transformers.AutoModelForSequenceClassification)
    )
    tokenizer.save_pretrained(folder)
    return folder, made.eval(), tokenizer


def test_scores_are_those_of_transformers_best_first(cross_encoder, tmp_path):
    folder, reference, tokenizer = cross_encoder
    model = NPUModelForSequenceClassification.from_pretrained(folder, cache_dir=tmp_path / "cache")
    ranked = model.rerank("where is bob", DOCUMENTS, batch_size=3)
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert sorted(one.index for one in ranked) == [0, 1, 2, 3]
    for one in ranked:
        assert one.document == DOCUMENTS[one.index]
        given = tokenizer(
            "where is bob", one.document, truncation=True, max_length=40, return_tensors="pt"
        )
        with torch.no_grad():
            expected = float(reference(**given).logits.sigmoid())
        assert one.score == pytest.approx(expected, rel=1e-4)
    assert [one.index for one in model.rerank("where is bob", DOCUMENTS, top_k=2)] == [
        one.index for one in ranked[:2]
    ]


def test_classifier_of_three_classes_is_refused(compiled):
    model = compiled("SequenceClassification", "roberta")
    with pytest.raises(ModelError, match="got 3") as caught:
        model.rerank("where", DOCUMENTS)
    assert caught.value.code == "model-task"

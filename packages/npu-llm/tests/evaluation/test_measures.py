import sys

import pytest
import sacrebleu
import torch

from npu_llm.errors import OptionError
from npu_llm.evaluation.measures import measure


def test_errors_are_counted_in_plain_words():
    right = ["The cat sat.", "on the mat"]
    found = ["the cat SAT", "on a mat, yes"]
    # Of six words one is another and one too many; of the letters `the` became `a`, and ` yes`.
    assert measure("WER", found, right, []) == pytest.approx(2 / 6)
    assert measure("CER", ["abcd"], ["abce"], []) == pytest.approx(1 / 4)


def test_scores_are_sacrebleus_of_all_right_translations():
    found = ["the cat sat on the mat today", "a dog lives here now"]
    right = ["the cat sat on a mat today", ["a dog was here now", "the dog lives here now"]]
    references = [[right[0], right[1][0]], [right[0], right[1][1]]]
    for name, score in (("chrF", sacrebleu.corpus_chrf), ("BLEU", sacrebleu.corpus_bleu)):
        expected = score(found, references).score
        assert 30 < expected < 100
        assert measure(name, found, right, []) == pytest.approx(expected)


def test_accuracy_counts_classes_of_samples_or_of_their_words():
    assert measure("accuracy", [1, 2, 0, 1], [1, 2, 2, 1], []) == 0.75
    assert measure("accuracy", [[1, 2], [0]], [[1, 1], [0]], []) == pytest.approx(2 / 3)


def test_answers_are_compared_as_for_squad():
    found = ["The old Cat!", "in paris", "dog"]
    right = ["old cat", ["Rome", "Paris, France"], "the"]
    # Articles and points do not count; of `in paris` and `paris france` a half is common.
    assert measure("exact match", found, right, []) == pytest.approx(1 / 3)
    assert measure("F1", found, right, []) == pytest.approx((1 + 0.5 + 0) / 3)


def test_cosines_are_the_mean_and_the_least():
    exact = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])]
    found = [torch.tensor([3.0, 0.0]), torch.tensor([1.0, 1.0])]
    assert measure("cosine", found, [], exact) == pytest.approx((1 + 0.5**0.5) / 2)
    assert measure("least cosine", found, [], exact) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("name, library", [("WER", "jiwer"), ("chrF", "sacrebleu")])
def test_a_library_that_is_not_there_is_named(monkeypatch, name, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(OptionError, match=rf"must have {library}.*npu-llm\[eval\]") as caught:
        measure(name, ["a"], ["a"], [])
    assert caught.value.code == "missing-measure"

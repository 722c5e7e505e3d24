import numpy as np
import pytest

from npu_llm.errors import OptionError
from npu_llm.evaluation.tasks import FORMS, check_sample, form_of

LABELS = {"left": 0, "right": 1}
CLASSES = FORMS["AutoModelForSequenceClassification"]
WORDS = FORMS["AutoModelForTokenClassification"]
SPEECH = FORMS["AutoModelForSpeechSeq2Seq"]
TRANSLATION = FORMS["AutoModelForSeq2SeqLM"]


@pytest.mark.parametrize(
    "form, sample",
    [
        (CLASSES, {"text": "a", "label": "left"}),
        (CLASSES, {"text": "a", "pair": "b", "label": 1, "id": 7}),
        (WORDS, {"tokens": ["a", "b"], "labels": ["left", 1]}),
        (SPEECH, {"audio": "a.wav", "text": "b"}),
        (SPEECH, {"audio": np.zeros(3), "text": "b"}),
        (TRANSLATION, {"source": "a", "target": "b"}),
        (TRANSLATION, {"source": "a", "target": ["b", "c"]}),
    ],
)
def test_samples_that_fit(form, sample):
    check_sample(sample, form, "here", labels=LABELS)


@pytest.mark.parametrize(
    "form, sample, received",
    [
        (CLASSES, ["a", "left"], "a list"),
        (CLASSES, {"label": "left"}, "no text"),
        (CLASSES, {"text": " ", "label": "left"}, "text ' '"),
        (CLASSES, {"text": "a", "label": 1.0}, "label 1.0"),
        (CLASSES, {"text": "a", "label": True}, "label True"),
        (
            CLASSES,
            {"text": "a", "label": "middle"},
            "'middle' instead of a class of the model \\(left",
        ),
        (CLASSES, {"text": "a", "label": 2}, "label 2"),
        (CLASSES, {"text": "a", "pair": 3, "label": 1}, "pair 3"),
        (WORDS, {"tokens": "a b", "labels": [0, 1]}, "tokens 'a b'"),
        (WORDS, {"tokens": ["a", "b"], "labels": [0]}, "2 tokens and 1 labels"),
        (WORDS, {"tokens": ["a"], "labels": [-1]}, "label -1"),
        (SPEECH, {"audio": 3, "text": "b"}, "audio 3"),
        (TRANSLATION, {"source": "a", "target": []}, r"target \[\]"),
        (TRANSLATION, {"source": "a" * 99, "target": ["b", 1]}, r"target \['b', 1\]"),
    ],
)
def test_what_does_not_fit_is_said(form, sample, received):
    with pytest.raises(OptionError, match=f"^`here` .*got .*{received}") as caught:
        check_sample(sample, form, "here", labels=LABELS)
    assert caught.value.code == "eval-data"


def test_a_task_without_a_measure_is_named():
    with pytest.raises(OptionError, match="got ObjectDetection") as caught:
        form_of("AutoModelForObjectDetection")
    assert caught.value.code == "eval-task"

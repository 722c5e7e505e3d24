"""NPUAutoModel selects the class by the architecture in config.json."""

from __future__ import annotations

import json

import pytest
import transformers

import npu_llm
from npu_llm import NPUAutoModel
from npu_llm.errors import ModelError
from npu_llm.tasks.auto_model import class_name, find_task


@pytest.mark.parametrize(
    "name, auto",
    [
        ("bert", "AutoModel"),
        ("bert", "AutoModelForSequenceClassification"),
        ("distilbert", "AutoModelForTokenClassification"),
        ("bert", "AutoModelForQuestionAnswering"),
        ("bert", "AutoModelForMaskedLM"),
        ("vit", "AutoModelForImageClassification"),
        ("yolos", "AutoModelForObjectDetection"),
        ("wav2vec2", "AutoModelForCTC"),
        ("wav2vec2", "AutoModelForAudioClassification"),
        ("clip", "AutoModelForZeroShotImageClassification"),
    ],
)
def test_architecture_names_the_class(checkpoint, name, auto):
    assert find_task(checkpoint(name, getattr(transformers, auto))) == auto


@pytest.mark.parametrize(
    "kind, model, name",
    [
        ("t5", "T5ForConditionalGeneration", "NPUModelForSeq2SeqLM"),
        ("bart", "BartForConditionalGeneration", "NPUModelForSeq2SeqLM"),
        ("whisper", "WhisperForConditionalGeneration", "NPUModelForSpeechSeq2Seq"),
        ("llama", "LlamaForCausalLM", "NPUModelForCausalLM"),
        ("llava", "LlavaForConditionalGeneration", "NPUModelForImageTextToText"),
        ("gemma3", "Gemma3ForConditionalGeneration", "NPUModelForImageTextToText"),
        ("gemma3_text", "Gemma3ForCausalLM", "NPUModelForCausalLM"),
    ],
)
def test_what_generates_is_told_from_what_classifies(tmp_path, kind, model, name):
    config = {"model_type": kind, "architectures": [model]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert class_name(find_task(tmp_path)) == name
    assert hasattr(npu_llm, name)


def test_architecture_of_no_task_is_refused(tmp_path):
    config = {"model_type": "bert", "architectures": ["BertForNothing"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="BertForNothing") as caught:
        NPUAutoModel.from_pretrained(tmp_path)
    assert caught.value.code == "unknown-architecture"

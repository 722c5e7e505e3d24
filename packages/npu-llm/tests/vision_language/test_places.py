import pytest
import transformers

from npu_llm.errors import CaptureError
from npu_llm.vision_language.places import find_parts, glue_tensors


def test_parts_are_what_the_model_calls_and_the_rest_is_glue(family):
    model = family("LlavaOnevision")
    names = ["vision_tower", "multi_modal_projector", "embed", "language", "head"]
    assert list(find_parts(model)) == names
    assert [name for name, _ in glue_tensors(model)] == ["model.image_newline"]


def test_a_model_without_such_parts_is_refused():
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(CaptureError, match="BertModel: must have a language model") as caught:
        find_parts(transformers.BertModel(config))
    assert caught.value.code == "unknown-encoder"

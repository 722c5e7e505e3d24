"""Loading from the cache and from an exported folder, and errors."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers

from npu_llm import NPUAutoModel, NPUModelForFeatureExtraction, NPUModelForImageClassification
from npu_llm.errors import ModelError, OptionError

IDS = torch.tensor([[2, 7, 9, 11, 3], [2, 8, 3, 0, 0]])


@pytest.fixture(scope="module")
def started(checkpoint, tmp_path_factory):
    """A model without a tokenizer, started for the first time and from the cache."""
    place = tmp_path_factory.mktemp("started")
    folder = shutil.copytree(checkpoint("bert", transformers.AutoModel), place / "bare")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    kind, cache = NPUModelForFeatureExtraction, place / "cache"
    return [kind.from_pretrained(folder, cache_dir=cache) for _ in range(2)]


def test_second_start_traces_and_compiles_nothing(started):
    first, second = started
    assert not first.report.entry_from_cache
    assert second.report.from_cache
    assert torch.equal(first(IDS)[0], second(IDS)[0])


def test_exported_folder_starts_without_the_checkpoint(checkpoint, tmp_path):
    source = shutil.copytree(checkpoint("bert", transformers.AutoModel), tmp_path / "source")
    expected = transformers.AutoModel.from_pretrained(source).eval()
    folder = NPUModelForFeatureExtraction.export(source, tmp_path / "out", dtype="int8")
    shutil.rmtree(source)
    model = NPUAutoModel.from_pretrained(folder)
    assert isinstance(model, NPUModelForFeatureExtraction)
    assert model.precision.name == "int8"
    assert model.encode(["the cat", "bob"]).shape == (2, 32)
    with torch.no_grad():
        wanted = expected(IDS)[0]
    cosine = torch.nn.functional.cosine_similarity(model(IDS)[0], wanted, dim=-1)
    assert float(cosine.min()) >= 0.999
    with pytest.raises(OptionError) as taken:
        NPUModelForFeatureExtraction.export(folder, folder)
    assert taken.value.code == "output-exists"
    with pytest.raises(ModelError, match="ImageClassification") as caught:
        NPUModelForImageClassification.from_pretrained(folder)
    assert caught.value.code == "model-task"


def test_pipeline_of_a_model_with_one_step_is_refused(checkpoint, tmp_path):
    folder = checkpoint("bert", transformers.AutoModel)
    with pytest.raises(OptionError, match="Omit it") as caught:
        NPUModelForFeatureExtraction.from_pretrained(folder, pipeline="static", cache_dir=tmp_path)
    assert caught.value.code == "one-step-pipeline"


def test_checkpoint_of_another_kind_is_refused(checkpoint, tmp_path):
    folder = checkpoint("bert", transformers.AutoModel)
    with pytest.raises(ModelError, match=r"ImageClassification.*'bert'") as caught:
        NPUModelForImageClassification.from_pretrained(folder, cache_dir=tmp_path)
    assert caught.value.code == "unknown-architecture"


def test_model_without_tokenizer_says_so(started):
    _, model = started
    with pytest.raises(ModelError, match="a tokenizer") as caught:
        model.encode("the cat")
    assert caught.value.code == "missing-processor"

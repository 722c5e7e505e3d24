"""Calls of models of one step on a device that compiles a program for each shape."""

from __future__ import annotations

import pytest
import torch
import transformers

from npu_compiler.exported import runners
from npu_llm import NPUModelForFeatureExtraction
from npu_llm.tasks import model as task_model

CALLS = [(1, 3), (3, 9), (4, 16), (2, 17), (3, 39)]


@pytest.fixture
def asked(monkeypatch):
    """The shapes for which programs are loaded."""
    found = []
    load = runners.with_fixed_shapes

    def told(path, shapes, place):
        found.append(shapes[0])
        return load(path, shapes, place)

    for module in (runners, task_model):
        monkeypatch.setattr(module, "has_one_shape", lambda device: True)
    monkeypatch.setattr(runners, "with_fixed_shapes", told)
    return found


def assert_equal(model, expected, **given):
    with torch.no_grad():
        right = expected(**given)
    found = model(**given)
    assert list(found) == list(right)
    for name, value in right.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_few_shapes_serve_all_calls(checkpoint, tmp_path, asked, name):
    folder = checkpoint(name, transformers.AutoModel)
    expected = transformers.AutoModel.from_pretrained(folder).eval()
    model = NPUModelForFeatureExtraction.from_pretrained(folder, cache_dir=tmp_path)
    asked.clear()
    draws = torch.Generator().manual_seed(1)
    for rows, tokens in CALLS:
        ids = torch.randint(5, 24, (rows, tokens), generator=draws)
        mask = torch.ones_like(ids)
        mask[-1, tokens - 1 :] = 0
        assert_equal(model, expected, input_ids=ids, attention_mask=mask)
    longest = model.context_length
    assert asked == [(1, 16), (4, 16), (2, 32), (4, longest)]


def test_a_model_that_mixes_what_a_mask_hides_is_not_padded(tmp_path, asked):
    torch.manual_seed(3)
    config = transformers.FNetConfig(
        hidden_size=32, num_hidden_layers=1, intermediate_size=44, vocab_size=32,
        max_position_embeddings=40, pad_token_id=0,
    )  # fmt: skip
    expected = transformers.FNetModel(config).eval()
    expected.save_pretrained(tmp_path / "fnet")
    model = NPUModelForFeatureExtraction.from_pretrained(
        tmp_path / "fnet", cache_dir=tmp_path / "cache", verify="off"
    )
    asked.clear()
    ids = torch.tensor([[5, 9, 3, 7, 6]])
    assert_equal(model, expected, input_ids=ids)
    assert asked == [(1, 5)]

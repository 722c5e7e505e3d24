"""Calls of models of one step on a device that compiles a program for each shape."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from npu_compiler.exported import runners
from npu_llm import NPUModelForFeatureExtraction
from npu_llm.models.entry import MANIFEST
from npu_llm.tasks import model as task_model
from npu_llm.tasks.building import PROGRAM, may_pad
from npu_llm.tasks.examples import make_example

CALLS = [(1, 3), (3, 9), (4, 16), (2, 17), (3, 36)]


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
def test_few_shapes_serve_all_calls(checkpoint, compiled, asked, name):
    folder = checkpoint(name, transformers.AutoModel)
    expected = transformers.AutoModel.from_pretrained(folder).eval()
    model = compiled("FeatureExtraction", name)
    asked.clear()
    draws = torch.Generator().manual_seed(1)
    for rows, tokens in CALLS:
        ids = torch.randint(5, 24, (rows, tokens), generator=draws)
        mask = torch.ones_like(ids)
        mask[-1, tokens - 1 :] = 0
        assert_equal(model, expected, input_ids=ids, attention_mask=mask)
    longest = model.context_length
    assert asked == [(1, 16), (4, 16), (2, 32), (4, longest)]


def test_a_model_that_mixes_what_a_mask_hides_is_not_padded(checkpoint, compiled, tmp_path, asked):
    folder = checkpoint("bert", transformers.AutoModel)
    expected = transformers.AutoModel.from_pretrained(folder).eval()
    model = compiled("FeatureExtraction", "bert")
    example = make_example(expected)

    class Mixing:
        config, named_modules = expected.config, expected.named_modules

        def __call__(self, **given):
            result = expected(**given)
            result.last_hidden_state += result.last_hidden_state.mean(1, keepdim=True)
            return result

    with torch.no_grad():
        assert may_pad(expected, example, model.entry.folder / PROGRAM)
        assert not may_pad(Mixing(), example, model.entry.folder / PROGRAM)
    shutil.copytree(model.entry.folder, tmp_path / model.entry.folder.name, symlinks=True)
    (manifest,) = tmp_path.glob(f"*/{MANIFEST}")
    content = json.loads(manifest.read_text())
    content["about"]["may_pad"] = False
    manifest.write_text(json.dumps(content))
    model = NPUModelForFeatureExtraction.from_pretrained(folder, cache_dir=tmp_path)
    asked.clear()
    assert_equal(model, expected, input_ids=torch.tensor([[5, 9, 3, 7, 6]]))
    assert asked == [(1, 5)]

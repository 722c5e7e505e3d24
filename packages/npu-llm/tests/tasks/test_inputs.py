"""Invalid inputs raise errors with codes instead of giving wrong results."""

import json
import shutil

import pytest
import torch
import transformers

from npu_compiler.exported import load as loading
from npu_llm import NPUModelForFeatureExtraction
from npu_llm.errors import ContextError, OptionError
from npu_llm.models.entry import MANIFEST
from npu_llm.tasks import model as task_model
from npu_llm.tasks.building import PROGRAM, make_example, may_pad


@pytest.fixture(scope="module")
def encoder(compiled):
    return compiled("FeatureExtraction", "bert")


def test_mask_and_types_may_be_omitted(encoder):
    ids = torch.tensor([[2, 7, 9, 3]])
    whole = encoder(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert torch.equal(encoder(ids).last_hidden_state, whole.last_hidden_state)


@pytest.mark.parametrize(
    "given, code, received",
    [
        ({"input_ids": torch.tensor([[2, 32, 3]])}, "token-range", "32"),
        ({"input_ids": torch.tensor([[2, -1, 3]])}, "token-range", "-1"),
        ({"input_ids": torch.tensor([[2.0, 3.0]])}, "step-dtype", "float32"),
        ({"input_ids": torch.tensor([2, 3])}, "step-shape", "(2,)"),
        ({}, "input-missing", "none"),
        ({"input_ids": torch.tensor([[2, 3]]), "pixel_values": 1}, "input-name", "pixel_values"),
        (
            {"input_ids": torch.tensor([[2, 3]]), "output_attentions": True},
            "input-name", "output_attentions",
        ),
        (
            {"input_ids": torch.tensor([[2, 3]]), "token_type_ids": torch.tensor([[0, 2]])},
            "token-range", "2",
        ),
    ],
)  # fmt: skip
def test_tokens_that_do_not_fit_are_refused(encoder, given, code, received):
    with pytest.raises(OptionError) as caught:
        encoder(**given)
    assert caught.value.code == code
    assert received in str(caught.value)


def test_text_longer_than_the_model_takes_is_refused(encoder):
    with pytest.raises(ContextError) as caught:
        encoder(torch.full((1, 41), 7))
    assert caught.value.code == "context-overflow"
    assert "40" in str(caught.value)
    assert "41" in str(caught.value)


def test_sound_with_nan_is_refused(compiled):
    model = compiled("CTC", "wav2vec2-layer")
    sound = torch.randn(2, 900)
    sound[1, 70] = torch.nan
    with pytest.raises(OptionError, match="NaN") as caught:
        model(input_values=sound)
    assert caught.value.code == "input-not-finite"


@pytest.mark.parametrize("shape", [(1, 1, 32, 32), (3, 32, 32)])
def test_image_without_its_channels_is_refused(compiled, shape):
    model = compiled("ImageClassification", "vit")
    with pytest.raises(OptionError) as caught:
        model(pixel_values=torch.randn(shape))
    assert caught.value.code == "image-channels"
    assert str(shape) in str(caught.value)


CALLS = [(1, 3), (3, 9), (4, 16), (2, 17), (3, 36)]


@pytest.fixture
def asked(monkeypatch):
    """The shapes for which programs are loaded."""
    found = []
    load = loading.with_fixed_shapes

    def told(path, shapes, place):
        found.append(shapes[0])
        return load(path, shapes, place)

    for module in (loading, task_model):
        monkeypatch.setattr(module, "has_one_shape", lambda device: True)
    monkeypatch.setattr(loading, "with_fixed_shapes", told)
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

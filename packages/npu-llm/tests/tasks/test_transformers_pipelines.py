"""transformers.pipeline gives the same results with our classes as with transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

TEXTS = ["the cat sat on the mat", "where is bob", "anna lives in paris and bob in london"]


def _image_processor(kind, **sizes):
    return getattr(transformers, f"{kind}ImageProcessor")(**sizes)


def _images():
    from PIL import Image

    draws = np.random.default_rng(4)
    return [
        Image.fromarray(draws.integers(0, 255, (*size, 3), dtype=np.uint8))
        for size in ((40, 56), (64, 33))
    ]


def _sounds():
    draws = np.random.default_rng(5)
    return [draws.normal(size=length).astype(np.float32) for length in (1600, 2400)]


# Pipeline -> family, preprocessor besides the tokenizer, inputs, further arguments.
PIPELINES = {
    "feature-extraction": ("bert", {}, TEXTS, {}),
    "text-classification": ("roberta", {}, TEXTS, {"top_k": 3}),
    "zero-shot-classification": (
        "roberta", {}, TEXTS[0], {"candidate_labels": ["cat", "dog", "london"]},
    ),
    "token-classification": ("distilbert", {}, TEXTS, {"aggregation_strategy": "simple"}),
    "fill-mask": ("roberta", {}, ["the <mask> sat", "bob is in <mask>"], {"top_k": 4}),
    "image-classification": (
        "vit",
        {"image_processor": lambda: _image_processor("ViT", size={"height": 32, "width": 32})},
        _images, {"top_k": 3},
    ),
    "object-detection": (
        "yolos",
        {"image_processor": lambda: _image_processor(
            "Yolos", size={"height": 32, "width": 48}, do_pad=False
        )},
        _images, {"threshold": 0.0},
    ),
    "zero-shot-image-classification": (
        "clip",
        {"image_processor": lambda: _image_processor(
            "CLIP", size={"height": 32, "width": 32}, do_center_crop=False
        )},
        _images, {"candidate_labels": ["a cat", "the dog"]},
    ),
    "audio-classification": (
        "wav2vec2", {"feature_extractor": lambda: transformers.Wav2Vec2FeatureExtractor()},
        _sounds, {"top_k": 2},
    ),
    "automatic-speech-recognition": (
        "wav2vec2-layer",
        {"feature_extractor": lambda: transformers.Wav2Vec2FeatureExtractor(
            return_attention_mask=True
        )},
        _sounds, {},
    ),
}  # fmt: skip
CLASSES = {
    "feature-extraction": "FeatureExtraction",
    "text-classification": "SequenceClassification",
    "zero-shot-classification": "SequenceClassification",
    "token-classification": "TokenClassification",
    "fill-mask": "MaskedLM",
    "image-classification": "ImageClassification",
    "object-detection": "ObjectDetection",
    "zero-shot-image-classification": "ZeroShotImageClassification",
    "audio-classification": "AudioClassification",
    "automatic-speech-recognition": "CTC",
}


def _assert_near(found, expected):
    """Equal words and structure; numbers within 1e-4 of the largest in the same list."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            _assert_near(found[key], expected[key])
    elif isinstance(expected, list) and expected and isinstance(expected[0], float):
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _assert_near(one, other)
    elif isinstance(expected, (float, np.floating)):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    elif isinstance(expected, int):
        assert abs(found - expected) <= 1  # a side of a box, rounded down
    else:
        assert found == expected


@pytest.mark.filterwarnings("ignore")  # of transformers; the same for its classes
@pytest.mark.parametrize("task", PIPELINES)
def test_pipeline_answers_as_with_transformers(checkpoint, compiled, task):
    family, processors, given, options = PIPELINES[task]
    name = CLASSES[task]
    auto = transformers.AutoModel if name == "FeatureExtraction" else getattr(
        transformers, f"AutoModelFor{name}"
    )  # fmt: skip
    folder = checkpoint(family, auto)
    made = {kind: make() for kind, make in processors.items()}
    if "tokenizer" not in made and any(folder.glob("tokenizer*")):
        made["tokenizer"] = transformers.AutoTokenizer.from_pretrained(folder)
    ours = compiled(name, family)
    theirs = auto.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = given() if callable(given) else given
    for batch_size in (1, 2):
        found, expected = (
            transformers.pipeline(task, model=model, device="cpu", batch_size=batch_size, **made)(
                inputs, **options
            )
            for model in (ours, theirs)
        )
        _assert_near(found, expected)


def test_inputs_stay_with_the_model_where_the_process_uses_npu(checkpoint, compiled):
    folder = checkpoint("roberta", transformers.AutoModelForSequenceClassification)
    ours = compiled("SequenceClassification", "roberta")
    torch.npu.init()  # else the libraries take the CPU here, which stands in for an NPU
    classify = transformers.pipeline(
        "text-classification",
        model=ours,
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
    )
    assert classify.device == torch.device("cpu")
    assert classify(TEXTS[0])[0]["label"]

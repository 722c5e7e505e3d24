"""Models of one step give transformers' results: families x tasks, batches, padding, lengths."""

from __future__ import annotations

import pytest
import torch
import transformers

import npu_llm
from npu_llm.errors import CaptureError

FAMILIES = [
    ("bert", "FeatureExtraction"),
    ("vit", "ImageClassification"),
    ("wav2vec2-layer", "CTC"),
    ("deberta-v2", "FeatureExtraction"), ("modernbert", "SequenceClassification"),
    ("electra", "TokenClassification"), ("mpnet", "QuestionAnswering"), ("roberta", "MaskedLM"),
    ("swin", "ImageClassification"), ("yolos", "ObjectDetection"),
    ("clip", "ZeroShotImageClassification"), ("hubert", "AudioClassification"),
]  # fmt: skip
LONG = [
    *((name, "FeatureExtraction") for name in
      ("roberta", "xlm-roberta", "distilbert", "mpnet", "electra", "modernbert")),
    *((name, "SequenceClassification") for name in ("bert", "roberta")),
    ("distilbert", "TokenClassification"), ("bert", "QuestionAnswering"), ("bert", "MaskedLM"),
    *((name, "ImageClassification") for name in ("resnet", "convnext")),
    ("wav2vec2", "CTC"), ("hubert", "CTC"), ("wav2vec2", "AudioClassification"),
]  # fmt: skip


def _auto(task):
    return transformers.AutoModel if task == "FeatureExtraction" else getattr(
        transformers, f"AutoModelFor{task}"
    )  # fmt: skip


def _calls(model, program):
    """Yields calls of other sizes than the program was traced with."""
    names = [port.name for port in program.inputs]
    draws = torch.Generator().manual_seed(9)
    for batch, length, side in ((1, 6, 40), (5, 17, 52)):
        given = {}
        if "input_ids" in names:
            given["input_ids"] = torch.randint(5, 24, (batch, length), generator=draws)
            given["input_ids"][0, -1] = 3
            mask = torch.ones((batch, length), dtype=torch.int64)
            mask[-1, length - 2 :] = 0 if batch > 1 else 1
            given["attention_mask"] = mask
        if "pixel_values" in names:
            shape = next(port.shape for port in program.inputs if port.name == "pixel_values")
            sizes = [size if isinstance(size, int) else side + 9 * dim
                     for dim, size in enumerate(shape)]  # fmt: skip
            given["pixel_values"] = torch.randn((batch, *sizes[1:]), generator=draws)
        if "input_values" in names:
            given["input_values"] = torch.randn((batch, 1000 + 37 * length), generator=draws)
            if "attention_mask" in names and batch > 1:
                mask = torch.ones(given["input_values"].shape, dtype=torch.int64)
                mask[1, 700:] = 0
                given["attention_mask"] = mask
        yield given


def _assert_same(found, expected):
    assert list(found) == list(expected)
    assert type(found).__name__ == type(expected).__name__
    for name in expected:
        if isinstance(expected[name], torch.Tensor):
            scale = float(expected[name].abs().max())
            worst = float((found[name] - expected[name]).abs().max())
            assert worst <= 1e-4 * scale, (name, worst, scale)


def _compare(checkpoint, compiled, name, task):
    auto = _auto(task)
    model = compiled(task, name)
    assert model.verification.status in ("right", "unchecked")
    reference = auto.from_pretrained(checkpoint(name, auto), dtype=torch.float32).eval()
    for given in _calls(model, model._program):
        with torch.no_grad():
            expected = reference(**given)
        _assert_same(model(**given), expected)


@pytest.mark.parametrize(
    "name, task", [*FAMILIES, *(pytest.param(*one, marks=pytest.mark.long) for one in LONG)]
)
def test_results_of_every_family_equal_transformers(checkpoint, compiled, name, task):
    _compare(checkpoint, compiled, name, task)


@pytest.mark.parametrize(
    "dtype",
    ["float32"]
    + [pytest.param(one, marks=pytest.mark.long) for one in ("bfloat16", "int8", "int4")],
)
def test_code_that_branches_on_a_size_is_refused(tmp_path, dtype):
    # SEW pads by a frame where their number is odd.
    torch.manual_seed(3)
    config = transformers.SEWConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=44,
        vocab_size=32, conv_dim=(8, 12), conv_stride=(5, 4), conv_kernel=(10, 4),
        num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    transformers.SEWForCTC(config).save_pretrained(tmp_path / "sew")
    with pytest.raises(CaptureError, match="takes another way") as caught:
        npu_llm.NPUModelForCTC.from_pretrained(
            tmp_path / "sew", dtype=dtype, cache_dir=tmp_path / "cache"
        )
    assert caught.value.code == "fixed-size"

"""One-step models give transformers' results: families x tasks, batches, padding, lengths."""

import json

import pytest
import torch
import transformers

import npu_llm
from npu_llm import NPUModelForFeatureExtraction, NPUModelForSequenceClassification
from npu_llm.errors import CaptureError, ContextError, ModelError, OptionError
from npu_llm.tasks.models import _batches, pool, read_normalize, read_pooling

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
    with pytest.raises(CaptureError, match="takes another branch") as caught:
        npu_llm.NPUModelForCTC.from_pretrained(
            tmp_path / "sew", dtype=dtype, cache_dir=tmp_path / "cache"
        )
    assert caught.value.code == "fixed-size"


TEXTS = ["the cat sat", "where is bob", "anna lives in paris and bob lives in london", "mat", ""]


@pytest.fixture(scope="module")
def encoder(compiled):
    return compiled("FeatureExtraction", "bert")


def test_vectors_do_not_depend_on_the_batch(encoder):
    alone = torch.stack([encoder.encode(text) for text in TEXTS])
    for size in (1, 2, 64):
        assert torch.allclose(encoder.encode(TEXTS, batch_size=size), alone, atol=1e-5)


def test_normalized_vectors_have_length_one(encoder):
    lengths = encoder.encode(TEXTS, normalize=True).norm(dim=1)
    assert torch.allclose(lengths, torch.ones(len(TEXTS)), atol=1e-6)
    assert not torch.allclose(encoder.encode(TEXTS, normalize=False).norm(dim=1), lengths)


def test_long_text_is_cut_or_refused(encoder):
    text = "cat dog " * 40
    cut = "cat dog " * 19
    assert torch.allclose(encoder.encode(text), encoder.encode(cut), atol=1e-6)
    with pytest.raises(ContextError, match="82") as caught:
        encoder.encode(text, truncate=False)
    assert caught.value.code == "context-overflow"


def test_batch_of_none_is_refused(encoder):
    with pytest.raises(OptionError, match="0") as caught:
        encoder.encode(TEXTS, batch_size=0)
    assert caught.value.code == "batch-size"


def test_no_text_has_no_vector(encoder):
    assert encoder.encode([]).shape == (0, encoder.encode(TEXTS).shape[1])


def test_batches_hold_each_row_once_with_little_padding():
    lengths = [3, 90, 4, 88, 30, 31, 3]
    batches = list(_batches(lengths, 3))
    assert sorted(row for batch in batches for row in batch) == list(range(7))
    assert batches == [[1, 3], [5, 4], [2], [0, 6]] or all(
        sum(lengths[row] for row in batch) >= 0.88 * len(batch) * lengths[batch[0]]
        for batch in batches
    )


@pytest.mark.parametrize(
    "dtype, least",
    [("float32", 0.99999), pytest.param("int8", 0.999, marks=pytest.mark.long)],
)
def test_minilm_equals_transformers(minilm, shared, dtype, least):
    texts = ["The cat sits outside.", "A man is playing a guitar by the bay", "Grüße, 世界!"]
    model = shared.load(NPUModelForFeatureExtraction, minilm, dtype=dtype)
    tokens = model.tokenizer(texts, padding=True, return_tensors="pt")
    reference = transformers.AutoModel.from_pretrained(minilm, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = reference(**tokens).last_hidden_state
    weights = tokens["attention_mask"][:, :, None].float()
    expected = (hidden * weights).sum(1) / weights.sum(1)
    found = model.encode(texts)
    assert float(torch.nn.functional.cosine_similarity(found, expected).min()) >= least
    assert torch.allclose(found.norm(dim=1), torch.ones(3), atol=1e-5)  # as modules.json records


TOKENS = torch.tensor([[[1.0, -2.0], [3.0, -8.0], [50.0, 60.0]]])


@pytest.mark.parametrize(
    "how, expected",
    [("mean", [2.0, -5.0]), ("cls", [1.0, -2.0]), ("max", [3.0, -2.0]), ("last", [3.0, -8.0])],
)
def test_padding_does_not_count(how, expected):
    assert pool(TOKENS, torch.tensor([[1, 1, 0]]), how)[0].tolist() == expected


def test_first_and_last_are_tokens_with_padding_on_the_left():
    mask = torch.tensor([[0, 1, 1]])
    assert pool(TOKENS, mask, "cls")[0].tolist() == [3.0, -8.0]
    assert pool(TOKENS, mask, "last")[0].tolist() == [50.0, 60.0]


def test_unknown_pooling_is_refused():
    with pytest.raises(OptionError, match="median") as caught:
        pool(TOKENS, torch.ones(1, 3), "median")
    assert caught.value.code == "unknown-pooling"


def test_recorded_pooling_is_read(tmp_path):
    assert read_pooling(tmp_path) == "mean"
    assert not read_normalize(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    config = {"word_embedding_dimension": 8, "pooling_mode_cls_token": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    assert read_pooling(tmp_path) == "cls"
    assert read_normalize(tmp_path)


def test_recorded_pooling_that_is_not_known_is_refused(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    config = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with pytest.raises(OptionError, match="cls, max") as caught:
        read_pooling(tmp_path)
    assert caught.value.code == "unknown-pooling"


DOCUMENTS = ["bob lives in london", "the cat sat on the mat", "anna", "it was in paris " * 20]


@pytest.fixture
def cross_encoder(checkpoint, tmp_path):
    folder = tmp_path / "cross"
    made = transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoint("bert", transformers.AutoModelForSequenceClassification),
        num_labels=1, ignore_mismatched_sizes=True,
    )  # fmt: skip
    made.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        checkpoint("bert", transformers.AutoModelForSequenceClassification)
    )
    tokenizer.save_pretrained(folder)
    return folder, made.eval(), tokenizer


def test_scores_are_those_of_transformers_best_first(cross_encoder, tmp_path):
    folder, reference, tokenizer = cross_encoder
    model = NPUModelForSequenceClassification.from_pretrained(folder, cache_dir=tmp_path / "cache")
    ranked = model.rerank("where is bob", DOCUMENTS, batch_size=3)
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert sorted(one.index for one in ranked) == [0, 1, 2, 3]
    for one in ranked:
        assert one.document == DOCUMENTS[one.index]
        given = tokenizer(
            "where is bob", one.document, truncation=True, max_length=40, return_tensors="pt"
        )
        with torch.no_grad():
            expected = float(reference(**given).logits.sigmoid())
        assert one.score == pytest.approx(expected, rel=1e-4)
    assert [one.index for one in model.rerank("where is bob", DOCUMENTS, top_k=2)] == [
        one.index for one in ranked[:2]
    ]


def test_classifier_of_three_classes_is_refused(compiled):
    model = compiled("SequenceClassification", "roberta")
    with pytest.raises(ModelError, match="got 3") as caught:
        model.rerank("where", DOCUMENTS)
    assert caught.value.code == "model-task"

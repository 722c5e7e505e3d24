"""Vectors of texts from vectors of tokens, with padding at either end."""

from __future__ import annotations

import json

import pytest
import torch

from npu_llm.errors import OptionError
from npu_llm.tasks.pooling import pool, read_normalize, read_pooling

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

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers

from npu_llm import NPUAutoModel
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ModelError
from npu_llm.gguf.tokenizer import build_tokenizer
from npu_llm.tasks.models import pool
from tiny_gguf import write_tiny

WITNESS = json.loads((Path(__file__).parent / "witness.json").read_text())
TOKENS = json.loads((Path(__file__).parent / "token_ids.json").read_text())


def written(path, name):
    """Returns a file of a model with a byte-level tokenizer, and the tokenizer."""
    described, vocabulary = deepcopy(WITNESS[name]), TOKENS["vocabularies"]["bytes"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": vocabulary["tokens"],
        "tokenizer.ggml.merges": vocabulary["merges"],
    }
    for key, value in metadata.items():
        types = ["STRING"] if isinstance(value, str) else ["ARRAY", "STRING"]
        described["metadata"][key] = [types, value]
    described["tensors"]["token_embd.weight"][0][0] = len(vocabulary["tokens"])
    described["metadata"][f"{name}.block_count"][1] = 1  # tracing takes seconds
    for tensor in [one for one in described["tensors"] if one.startswith("blk.1.")]:
        del described["tensors"][tensor]
    return write_tiny(path / f"{name}.gguf", described), build_tokenizer(metadata)


def test_vectors_of_texts_are_pooled_as_the_file_says(tmp_path):
    path, tokenizer = written(tmp_path, "bert")
    texts = ["def f(x): return x", "the"]
    found = NPUAutoModel.from_pretrained(path, verify="off", cache_dir=tmp_path / "cache").encode(
        texts
    )
    model, weights = load_model(find_source(path), auto=transformers.AutoModel)
    weights.fill()
    for text, vector in zip(texts, found, strict=True):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            tokens = model(ids).last_hidden_state
        torch.testing.assert_close(
            vector, pool(tokens, torch.ones_like(ids), "cls")[0], rtol=1e-4, atol=1e-4
        )


def test_model_of_another_task_is_refused(tmp_path):
    path = write_tiny(tmp_path / "some.gguf", WITNESS["t5encoder"])
    with pytest.raises(ModelError, match="'t5encoder', which is for text embeddings") as caught:
        load_model(find_source(path))
    assert caught.value.code == "unknown-architecture"

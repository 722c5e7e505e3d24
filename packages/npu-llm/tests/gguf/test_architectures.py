"""Compares models of tiny GGUF files with llama.cpp's results; see tools/gguf_witness.py."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers

import gguf_table
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ModelError
from npu_llm.gguf.architectures import ARCHITECTURES, REFUSED
from npu_llm.gguf.encoders import ENCODERS as ROWS_OF_ENCODERS
from npu_llm.gguf.file import open_gguf
from npu_llm.gguf.task import ENCODER_NAMES, find_gguf_task, pooling_of
from npu_llm.tasks.models import pool
from tiny_gguf import write_tiny

ROOT = Path(__file__).parents[4]
WITNESS = json.loads((Path(__file__).parent / "witness.json").read_text())
ENCODERS = {name for name, described in WITNESS.items() if "vectors" in described["answer"]}
LIMIT = 2e-3  # of the logits' spread


class TabulatedGelu(torch.nn.Module):
    """GELU as llama.cpp computes it on a CPU: looked up by a float16, in float16."""

    def forward(self, x):
        found = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().to(x.dtype)
        return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, found))


def compute_as_llama_cpp(model):
    """Adopts llama.cpp's computations that differ from the models'."""
    tabulate_gelu(model)
    normal = torch.distributions.Normal(0.0, 1.0)
    for module in model.modules():
        if getattr(module, "activation_sparsity", 0.0):  # of Gemma 3n
            count = module.gate_proj.out_features  # llama.cpp divides by one less
            bound = normal.icdf(torch.tensor(module.activation_sparsity, dtype=torch.float64))
            module.activation_sparsity = float(normal.cdf(bound * (count / (count - 1)) ** 0.5))


def tabulate_gelu(model):
    for name, module in list(model.named_modules()):
        if "gelu" in type(module).__name__.lower():
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, TabulatedGelu())


def largest_difference(found, expected, spread):
    return float((found - torch.tensor(expected)).abs().max() / spread)


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_vectors_are_llama_cpp_s(tmp_path, name):
    expected = WITNESS[name]["answer"]
    source = find_source(write_tiny(tmp_path / f"{name}.gguf", WITNESS[name]))
    task = find_gguf_task(source.path)
    model, weights = load_model(source, auto=getattr(transformers, task))
    weights.fill()
    compute_as_llama_cpp(model)
    ids = torch.tensor([expected["ids"]])
    with torch.no_grad():
        result = model(ids, output_hidden_states=task != "AutoModel")
    spread = expected["spread"]
    if task != "AutoModel":
        assert largest_difference(result.logits[0], expected["text"], spread) < LIMIT
        return
    vectors = result.last_hidden_state
    found = vectors[0][expected["rows"], : len(expected["text"])]
    assert largest_difference(found, expected["vectors"], spread) < LIMIT
    text = pool(vectors, torch.ones_like(ids), pooling_of(open_gguf(source.path)))
    assert largest_difference(text[0, : len(expected["text"])], expected["text"], spread) < LIMIT


@pytest.mark.parametrize("name", sorted(WITNESS.keys() - ENCODERS))
def test_logits_and_tokens_are_llama_cpp_s(tmp_path, name):
    described = WITNESS[name]
    expected = described["answer"]
    source = find_source(write_tiny(tmp_path / f"{name}.gguf", described))
    model, weights = load_model(source)
    weights.fill()
    compute_as_llama_cpp(model)
    model.double()
    ids = torch.tensor([[*expected["ids"], *expected["tokens"]]])
    with torch.no_grad():
        logits = model(ids).logits[0]
    found = logits[expected["rows"], : len(expected["logits"][0])]
    difference = (found - torch.tensor(expected["logits"])).abs().max() / expected["spread"]
    assert difference < LIMIT
    start = len(expected["ids"]) - 1
    assert logits[start:-1].argmax(-1).tolist() == expected["tokens"]


def test_each_row_of_the_table_has_a_witness():
    seen = {described["architecture"] for described in WITNESS.values()}
    assert {name.partition("(")[0] for name in ARCHITECTURES} - seen <= WITHOUT_WITNESS


def test_page_lists_each_row():
    assert (ROOT / "docs/reference/gguf.md").read_text() == gguf_table.page()


@pytest.mark.parametrize("name", ["phimoe", "t5"])
def test_refusals_say_why(tmp_path, name):
    described = {**WITNESS["llama"], "architecture": name}
    with pytest.raises(ModelError, match=re.escape(f"got {name!r}; {REFUSED[name]}")) as caught:
        load_model(find_source(write_tiny(tmp_path / "some.gguf", described)))
    assert caught.value.code == "gguf-architecture"


def test_encoders_have_their_names():
    assert set(ROWS_OF_ENCODERS) == ENCODER_NAMES


# llama.cpp has the names, but does not run such files.
WITHOUT_WITNESS = {"gptj"}

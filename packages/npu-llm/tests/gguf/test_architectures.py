"""Compares models of tiny GGUF files with what llama.cpp answers; see tools/gguf_witness.py."""

import json
from pathlib import Path

import pytest
import torch

from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.gguf.architectures import ARCHITECTURES
from tiny_gguf import write_tiny

WITNESS = json.loads((Path(__file__).parent / "witness.json").read_text())
LIMIT = 2e-3  # of the logits' spread


class TabulatedGelu(torch.nn.Module):
    """GELU as llama.cpp computes it on a CPU: looked up by a float16, in float16."""

    def forward(self, x):
        found = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, found))


def tabulate_gelu(model):
    for name, module in list(model.named_modules()):
        if "gelu" in type(module).__name__.lower():
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, TabulatedGelu())


@pytest.mark.parametrize("name", WITNESS)
def test_logits_and_tokens_are_llama_cpp_s(tmp_path, name):
    described = WITNESS[name]
    expected = described["answer"]
    source = find_source(write_tiny(tmp_path / f"{name}.gguf", described))
    model, weights = load_model(source)
    weights.fill()
    tabulate_gelu(model)
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


# llama.cpp has the names, but does not run such files.
WITHOUT_WITNESS = {"gptj"}

"""Cache entries built without transformers equal those built with a trace."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoConfig, GenerationConfig

from npu_compiler.errors import WrongResultError
from npu_llm import NPUModelForCausalLM
from npu_llm.capture.compression import Compression
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.models import known_model, stored_weights
from npu_llm.models.known_model import find_known
from npu_llm.precision import PRECISIONS
from tiny_gguf import write_tiny

WITNESS = json.loads((Path(__file__).parents[1] / "gguf" / "witness.json").read_text())
# Those that must be known; of further ones that are, all is compared as well.
KNOWN = [
    "deci_plain", "gemma", "gemma2", "gemma2_pattern", "gemma3_noswa", "gemma3_plain",
    "gemma3_rope_factor", "gemma3_swabase", "granite", "granite_norope", "llama", "llama3rope",
    "llama_attention_biases", "llama_factor_notype", "llama_rope_linear", "llama_rope_yarn",
    "llama_scaling_none", "llama_yarn_attn", "mistral", "olmo2", "phi3_long_256_64",
    "phi3_partial_rotary", "phi3_plain", "phi3_short", "qwen2", "qwen2_nobias", "qwen3",
    "seed_oss", "smollm3",
]  # fmt: skip
# Of each kind of tables and joins one.
TRACED = ["gemma3_swabase", "granite", "llama_rope_yarn", "phi3_short", "qwen2", "smollm3"]
OWN = replace(PRECISIONS["int8"], weights="file")


@pytest.fixture
def llama():
    """A description of a file that a test may change."""
    return deepcopy(WITNESS["llama"])


def found(folder, described):
    return find_known(find_source(write_tiny(folder / "some.gguf", described)))


@pytest.mark.parametrize("name", WITNESS)
def test_config_and_reference_are_those_of_transformers(name, tmp_path):
    known = found(tmp_path, WITNESS[name])
    assert known is not None or name not in KNOWN
    if known is None:
        return  # it is traced
    model, weights = load_model(find_source(tmp_path / "some.gguf"))
    weights.fill()
    known.save_files(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.to_dict() == model.config.to_dict() | {"_name_or_path": config._name_or_path}
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id", "suppress_tokens")
    generation = GenerationConfig.from_pretrained(tmp_path)
    assert all(getattr(generation, at) == getattr(model.generation_config, at) for at in tokens)
    assert known.architecture == type(model).__name__
    assert known.vocabulary == model.config.vocab_size

    step = known.kernel_step(known.context_length, OWN, Compression())
    reference = step.compute(tmp_path / "unused", lambda share, doing: None)
    with torch.no_grad():
        expected = model(reference.ids[None]).logits[0, list(reference.rows)]
    limit = 1e-5 * float(expected.abs().max())
    assert torch.allclose(reference.logits, expected, atol=limit, rtol=0)


def started(path, cache, **options):
    return NPUModelForCausalLM.from_pretrained(
        path, pipeline="kernels", cache_dir=path.parent / cache, **options
    )


@pytest.mark.parametrize("name", TRACED)
def test_programs_are_those_of_a_trace(name, tmp_path, monkeypatch):
    path = write_tiny(tmp_path / "some.gguf", WITNESS[name], GGMLQuantizationType.Q8_0)
    written = started(path, "written", dtype="int8")
    monkeypatch.setattr(known_model, "find_known", lambda source: None)
    traced = started(path, "traced", dtype="int8")
    ids = torch.randint(0, written.config.vocab_size, (1, 40))
    assert torch.equal(written(ids).logits, traced(ids).logits)
    here, there = (dict(model._entry.about) for model in (written, traced))
    assert here.pop("limits") == []
    there.pop("limits")
    assert here == there
    files = [
        {str(file.relative_to(one._entry.folder)) for file in one._entry.folder.rglob("*")}
        for one in (written, traced)
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "key, value",
    [("some.thing", 0.5), ("rope.scaling.type", "cubic"), ("context_length", -1)],
)
def test_what_would_be_refused_is_left_to_loading(key, value, tmp_path, llama):
    kind = {float: "FLOAT32", str: "STRING", int: "INT32"}[type(value)]
    llama["metadata"][f"llama.{key}"] = [[kind], value]
    assert found(tmp_path, llama) is None


def test_biases_that_the_class_does_not_have_are_left_to_a_trace(tmp_path, llama):
    llama["tensors"]["blk.1.attn_output.bias"] = [[64], 0.0, 1.0]
    assert found(tmp_path, llama) is None


def test_exchanged_blocks_are_found(tmp_path, llama, monkeypatch):
    """In a file's precision; its reference does not read packed weights back."""
    own = replace(OWN, name="bfloat16", dtype_name="bfloat16")
    monkeypatch.setitem(PRECISIONS, "bfloat16", own)
    path = write_tiny(tmp_path / "some.gguf", llama, GGMLQuantizationType.Q8_0)
    assert started(path, "right", dtype="bfloat16").verification.status == "right"
    pack = stored_weights.pack_blocks

    def exchanged(kind, blocks, *, inputs, order):
        first, second, *rest = order.split(16)
        return pack(kind, blocks, inputs=inputs, order=torch.cat([second, first, *rest]))

    monkeypatch.setattr(stored_weights, "pack_blocks", exchanged)
    with pytest.raises(WrongResultError):
        started(path, "wrong", dtype="bfloat16")

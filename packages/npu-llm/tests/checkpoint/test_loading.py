import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from npu_llm import NPUModelForCausalLM
from npu_llm.checkpoint.loading import check_loadable, load_model
from npu_llm.checkpoint.processors import copy_processors, load_beside
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ModelError

IDS = torch.tensor([[5, 9, 3, 7, 1, 4]])
OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"
    attribute_map = {"width": "hidden_size"}

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def llama(tmp_path, save_tiny):
    save_tiny("llama", tmp_path / "llama")
    return tmp_path / "llama"


def add(folder, **tensors):
    path = folder / "model.safetensors"
    save_file({**load_file(path), **tensors}, path, {"format": "pt"})


@pytest.fixture
def own_code(llama):
    about = json.loads((llama / "config.json").read_text())
    about |= {
        "model_type": "own",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    (llama / "config.json").write_text(json.dumps(about))
    (llama / "own.py").write_text(OWN_CODE)
    return llama


@pytest.fixture
def own_tokenizer(tmp_path):
    """Writes a tokenizer with its class as code in the checkpoint."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    )
    made.save_pretrained(tmp_path / "own")
    path = tmp_path / "own/tokenizer_config.json"
    about = json.loads(path.read_text()) | {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": [None, "words.OwnTokenizer"]},
    }
    path.write_text(json.dumps(about))
    (tmp_path / "own/words.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    return tmp_path / "own"


def test_tokenizer_that_is_code_runs_only_if_trusted(own_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on the terminal"))
    (tmp_path / "entry").mkdir()
    copy_processors(own_tokenizer, tmp_path / "entry")
    with pytest.raises(ModelError, match=r"\[remote-code\]"):
        load_beside(AutoTokenizer, tmp_path / "entry", "a tokenizer")
    found = load_beside(AutoTokenizer, tmp_path / "entry", "a tokenizer", trust_remote_code=True)
    assert type(found).__name__ == "OwnTokenizer"


def test_weights_that_the_model_has_no_place_for_are_an_error(llama):
    add(llama, **{"model.layers.0.self_attn.q_proj.bias": torch.ones(32)})
    source = find_source(llama)
    for load in (load_model, check_loadable):
        with pytest.raises(ModelError, match=r"1 are unexpected, such as .*q_proj\.bias") as caught:
            load(source)
        assert caught.value.code == "weights-unexpected"
        assert "--ignore-unexpected" in str(caught.value)
        load(source, ignore_unexpected=True)


def test_a_start_that_ignores_weights_does_not_serve_one_that_does_not(llama, tmp_path):
    add(llama, **{"extra.weight": torch.ones(3)})
    options = {"dtype": "float32", "cache_dir": tmp_path / "cache"}
    NPUModelForCausalLM.from_pretrained(llama, ignore_unexpected=True, **options)
    with pytest.raises(ModelError, match=r"extra\.weight.*\[weights-unexpected\]"):
        NPUModelForCausalLM.from_pretrained(llama, **options)


@pytest.mark.parametrize(
    "name, value",
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(4)),
        ("model.layers.0.self_attn.masked_bias", torch.tensor(-1e9)),
        ("model.layers.0.attn.bias", torch.ones(1, 1, 8, 8)),  # a causal mask
        ("score.weight", torch.ones(2, 32)),  # of LlamaForSequenceClassification
    ],
)
def test_buffers_of_old_checkpoints_and_heads_of_other_tasks_are_no_error(llama, name, value):
    add(llama, **{name: value})
    check_loadable(find_source(llama))


def test_tied_head_that_is_stored_too_is_no_error(tmp_path, save_tiny):
    save_tiny("llama", tmp_path / "tied", tie_word_embeddings=True)
    table = load_file(tmp_path / "tied" / "model.safetensors")["model.embed_tokens.weight"]
    add(tmp_path / "tied", **{"lm_head.weight": table.clone()})
    load_model(find_source(tmp_path / "tied"))


def test_check_without_reading_finds_missing_and_misshapen_weights(llama):
    path = llama / "model.safetensors"
    tensors = load_file(path)
    head = tensors.pop("lm_head.weight")
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"\[weights-missing\]"):
        check_loadable(find_source(llama))
    save_file({**tensors, "lm_head.weight": head[1:]}, path)
    with pytest.raises(ModelError, match=r"\[weights-shape\]"):
        check_loadable(find_source(llama))


def test_code_of_the_checkpoint_runs_only_if_trusted(own_code, tmp_path):
    source = find_source(own_code)
    for load in (load_model, check_loadable):
        with pytest.raises(ModelError, match=r"--trust-remote-code.*\[remote-code\]"):
            load(source)
    options = {"dtype": "float32", "cache_dir": tmp_path / "cache"}
    first = NPUModelForCausalLM.from_pretrained(own_code, trust_remote_code=True, **options)
    assert first.config.model_type == "own"
    assert first.config.width == 32
    # The program is there, and none of the checkpoint's code is needed to run it.
    second = NPUModelForCausalLM.from_pretrained(own_code, **options)
    assert second.report.entry_from_cache
    assert torch.equal(first(IDS).logits, second(IDS).logits)
    assert second.generate(IDS, max_new_tokens=2).shape == (1, 8)

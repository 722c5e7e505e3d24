import json
import subprocess
import sys

import pytest
import torch

import npu_llm
from npu_llm.generation.light_answer import Sampling, answer, read_sampling
from npu_llm.generation.step_model import LightModel

ARGUMENTS = [
    {"do_sample": False},
    {"do_sample": True},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.6},
    {"do_sample": True, "top_k": 3},
    {"do_sample": True, "temperature": 1.4, "top_k": 0, "top_p": 0.95},
    {"do_sample": True, "top_k": 1000},
]


class Heard:
    """A streamer that keeps what it is given."""

    def __init__(self):
        self.puts, self.ended = [], 0

    def put(self, value):
        self.puts.append(value.tolist())

    def end(self):
        self.ended += 1


def answered(model, prompt, sampling, count):
    heard = Heard()
    answer(model, prompt, sampling, max_new_tokens=count, streamer=heard)
    assert heard.puts[0] == [list(prompt)]
    assert heard.ended == 1
    return [token for (token,) in heard.puts[1:]]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_tokens_are_those_of_generate(llama, arguments):
    prompt = [5, 9, 17, 3]
    torch.manual_seed(4)
    expected = llama.ours().generate(
        torch.tensor([prompt]), max_new_tokens=9, eos_token_id=None, **arguments
    )
    torch.manual_seed(4)
    found = answered(llama.ours(), prompt, Sampling(**arguments), 9)
    assert found == expected[0, 4:].tolist()


def test_an_end_token_and_the_context_end_an_answer(llama):
    prompt = [5, 9, 17, 3]
    free = answered(llama.ours(), prompt, Sampling(), 6)
    ended = answered(llama.ours(), prompt, Sampling(ends=(96, free[2])), 6)
    assert ended == free[: free.index(free[2]) + 1]
    room = llama.ours().context_length - len(prompt)
    assert len(answered(llama.ours(), prompt, Sampling(), room + 50)) == room


@pytest.mark.parametrize(
    "given, is_read",
    [
        ({}, True),
        ({"do_sample": True, "temperature": 0.3, "eos_token_id": [2, 7], "pad_token_id": 0}, True),
        ({"output_scores": False, "use_cache": True, "num_beams": 1, "max_length": 20}, True),
        ({"num_beams": 4}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"min_p": 0.05}, False),
        ({"suppress_tokens": [3]}, False),
        ({"use_cache": False}, True),  # changes the time, not the tokens
        ({"max_length": 64}, False),
        ({"some_new_option": "x"}, False),
    ],
    ids=str,
)
def test_a_config_that_asks_for_more_is_left_to_transformers(tmp_path, given, is_read):
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    found = read_sampling(tmp_path)
    assert (found is not None) == is_read
    if "eos_token_id" in given:
        assert found == Sampling(do_sample=True, temperature=0.3, ends=(2, 7), pad=0)


def test_a_loaded_model_is_light_until_transformers_is_needed(save_tiny, tmp_path):
    save_tiny("llama", tmp_path / "model")
    first = npu_llm.load(tmp_path / "model", dtype="float32", cache_dir=tmp_path / "cache")
    assert type(first) is LightModel
    assert isinstance(first, npu_llm.NPUModelForCausalLM)
    assert first.entry.vocabulary == 97
    expected = answered(first, [5, 9], Sampling(), 4)
    assert type(first) is LightModel
    found = first.generate(torch.tensor([[5, 9]]), max_new_tokens=4, do_sample=False)
    assert type(first) is npu_llm.NPUModelForCausalLM
    assert found[0, 2:].tolist() == expected
    assert first.config.vocab_size == 97
    with pytest.raises(AttributeError, match="nonsense"):
        first.nonsense  # noqa: B018


LOADS = """
import sys, torch, npu_llm
from npu_llm.generation.light_answer import Sampling, answer
class Out:
    def put(self, value): print(value.tolist())
    def end(self): pass
model = npu_llm.load(sys.argv[1], dtype="float32", cache_dir=sys.argv[2])
answer(model, [5, 9], Sampling(), max_new_tokens=2, streamer=Out())
assert "transformers" not in sys.modules, "transformers was imported"
logits = model(torch.tensor([[5, 9]])).logits
assert "transformers" in sys.modules
print(tuple(logits.shape))
"""


def test_a_start_from_the_cache_imports_no_transformers(save_tiny, tmp_path):
    save_tiny("llama", tmp_path / "model")
    npu_llm.load(tmp_path / "model", dtype="float32", cache_dir=tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "model"), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "[[5, 9]]"
    assert done.stdout.splitlines()[-1] == "(1, 2, 97)"

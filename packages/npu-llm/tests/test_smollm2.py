"""The real model, SmolLM2-135M-Instruct: the tokens of transformers, and answers in each precision.

Everything here shares one load of transformers' model and one compile cache.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from npu_llm import NPUModelForCausalLM

_STORY = "The lighthouse keeper counted the ships that passed in the night and wrote them down. "
PROMPTS = {
    "question": "Explain in two sentences what a neural processing unit is.",
    "list": "Name the planets of the solar system in order.",
    "code": "def fibonacci(n):\n    ",
    "capital": "The capital of France is",
    "french": "Pourquoi le ciel est-il bleu pendant la journée ?",
    "french story": "Il était une fois, dans un petit village au bord de la mer,",
    "arithmetic": "Q: What is 12 + 30?\nA:",
    "one word": "Hello",
    "dialogue": "Anna: Are you coming tonight?\nBen:",
    "recipe": "Ingredients for pancakes:\n- 2 eggs\n-",
    "table": "| city | country |\n|---|---|\n| Rome | Italy |\n|",
    "rewrite": "Correct the grammar: yesterday he go to school and see three dog.",
    "poem": "Roses are red,\nviolets are blue,\n",
    "json": '{"name": "Ada", "born": 1815, "known_for": "',
    "summary": f"Summarize: {_STORY * 6}",
    "long": _STORY * 34,  # cut to 500 tokens
}
# Asked through the chat template.
_ASKED = {"question", "list", "french", "rewrite", "summary"}
# These stand for the others in a usual run; the others: -m long.
_ALWAYS = {
    ("question", "auto"),
    ("french", "auto"),
    ("question", "static"),
    ("french", "npu plugin"),
}
_LENGTH = 24


@pytest.fixture(scope="module")
def tokenizer(weights):
    return AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)


@pytest.fixture(scope="module")
def reference(weights):
    return AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    """The same weights as a checkpoint, which loads faster than the GGUF file."""
    place = tmp_path_factory.mktemp("checkpoint")
    plain = LlamaForCausalLM(LlamaConfig.from_dict(reference.config.to_diff_dict()))
    plain.load_state_dict(reference.state_dict())
    plain.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def ours(smollm):
    return smollm()


def encode(tokenizer, text, name):
    if name in _ASKED:
        turns = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    encoded = tokenizer(text, return_tensors="pt")
    return {key: encoded[key][:, :500] for key in ("input_ids", "attention_mask")}


@pytest.fixture(scope="module")
def expected(reference, tokenizer):
    """expected(name): a prompt's inputs, and transformers' results."""
    known = {}

    def get(name):
        if name not in known:
            inputs = encode(tokenizer, PROMPTS[name], name)
            known[name] = inputs, reference.generate(**inputs, **_GREEDY)
        return known[name]

    return get


@pytest.fixture(scope="module")
def pipelines(ours, smollm, on_npu_plugin):
    static = smollm(pipeline="static")
    return {"auto": ours, "static": static, "npu plugin": on_npu_plugin(static)}


_GREEDY = {"max_new_tokens": _LENGTH, "do_sample": False, "eos_token_id": None}
_PIPELINES = ("auto", "static", "npu plugin")


@pytest.mark.parametrize(
    "name, pipeline",
    [
        pytest.param(name, pipeline, marks=() if (name, pipeline) in _ALWAYS else pytest.mark.long)
        for name in PROMPTS
        for pipeline in _PIPELINES
    ],
)
def test_greedy_tokens_equal_those_of_transformers(expected, pipelines, name, pipeline):
    inputs, tokens = expected(name)
    if name == "long":
        assert inputs["input_ids"].shape[1] == 500
    got = pipelines[pipeline].generate(**inputs, **_GREEDY)
    assert got.tolist() == tokens.tolist()
    assert got.shape[1] == inputs["input_ids"].shape[1] + _LENGTH


@pytest.fixture(scope="module")
def book(reference, tokenizer):
    """A prompt of 3,000 tokens that do not repeat, and transformers' result."""
    lines = (f"Ship {n} carried {n * 7 % 91} crates to harbour {n * 13 % 37}." for n in range(400))
    ids = tokenizer("\n".join(lines), return_tensors="pt")["input_ids"][:, :3000]
    assert ids.shape[1] == 3000
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs, reference.generate(**inputs, **_GREEDY)


@pytest.mark.parametrize(
    "pipeline", [pytest.param(name, marks=pytest.mark.long) for name in _PIPELINES]
)
def test_long_prompt_goes_on_as_with_transformers(book, pipelines, pipeline):
    inputs, tokens = book
    assert pipelines[pipeline].generate(**inputs, **_GREEDY).tolist() == tokens.tolist()


def test_stop_string_ends_the_answer(ours, tokenizer):
    inputs = tokenizer("The planets are Mercury, Venus,", return_tensors="pt")
    output = ours.generate(
        **inputs, max_new_tokens=40, do_sample=False, stop_strings=["Mars"], tokenizer=tokenizer
    )
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert answer.endswith("Mars")


def test_tokenizer_of_the_model_is_that_of_the_file(ours, tokenizer):
    turns = [{"role": "user", "content": "Où est la gare ? 12 🚂"}]
    options = {"add_generation_prompt": True, "return_dict": False}
    assert ours.tokenizer.apply_chat_template(turns, **options) == tokenizer.apply_chat_template(
        turns, **options
    )
    assert ours.tokenizer.eos_token_id == tokenizer.eos_token_id


def test_second_start_traces_and_compiles_nothing(ours, weights, shared, monkeypatch):
    from npu_llm.models import build

    def fail(*_, **__):
        raise AssertionError("a start from the cache reads no weights")

    monkeypatch.setattr(build, "fill_entry", fail)
    again = NPUModelForCausalLM.from_pretrained(
        weights, dtype="float32", cache_dir=shared.cache_dir(weights)
    )
    assert again.report.from_cache
    assert again.report.build_time_s == 0
    ids = torch.tensor([[1, 400, 500, 600]])
    options = {"max_new_tokens": 8, "do_sample": False}
    assert again.generate(ids, **options).tolist() == ours.generate(ids, **options).tolist()


# Relative error of the logits against fp32, as measured on 2026-11-20, with room above.
@pytest.mark.parametrize(
    "dtype, bound",
    [
        *(pytest.param(one, 0.05, marks=pytest.mark.long) for one in ("bfloat16", "float16")),
        pytest.param("int8", 0.1, marks=pytest.mark.long), ("int4", 0.9),
    ],
)  # fmt: skip
def test_logits_of_each_precision_are_near(reference, folder, tokenizer, dtype, bound, tmp_path):
    model = NPUModelForCausalLM.from_pretrained(folder, dtype=dtype, cache_dir=tmp_path)
    inputs = encode(tokenizer, PROMPTS["question"], "question")
    with torch.no_grad():
        expected = reference(**inputs).logits
    got = model(**inputs).logits
    error = ((got - expected).norm() / expected.norm()).item()
    print(f"{dtype}: relative error of the logits {error:.4f}")
    assert error < bound
    assert model.precision.name == dtype

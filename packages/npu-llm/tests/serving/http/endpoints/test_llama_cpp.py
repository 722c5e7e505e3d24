import json

import httpx
import pytest

from npu_llm.serving.models.served_model import ServedModel

GREEDY = {"model": "plain", "prompt": "the lazy dog", "temperature": 0, "n_predict": 9}


@pytest.fixture(scope="module")
def post(server):
    def post(path, **fields):
        return httpx.post(f"{server.url}{path}", json=fields, timeout=60)

    return post


@pytest.fixture(scope="module")
def expected(client):
    answer = client.completions.create(
        model="plain", prompt=GREEDY["prompt"], temperature=0, max_tokens=9
    )
    return answer.choices[0].text


def test_a_completion_has_the_text_of_openais(post, server, expected):
    found = post("/completion", **GREEDY, return_tokens=True).json()
    assert (found["content"], found["stop"], found["stop_type"]) == (expected, True, "limit")
    assert found["tokens_predicted"] == len(found["tokens"]) == found["timings"]["predicted_n"] == 9
    assert post("/detokenize", model="plain", tokens=found["tokens"]).json()["content"] == expected
    tokens = server.model().tokenizer.encode("lazy dog")
    mixed = post("/completion", **GREEDY | {"prompt": ["the ", *tokens]}).json()
    assert mixed["tokens_evaluated"] == len(server.model().tokenizer.encode("the ")) + len(tokens)


def test_a_stream_has_the_same_text(post, expected):
    lines = post("/completion", **GREEDY, stream=True).text.strip().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(one["content"] for one in events) == expected
    assert [one["stop"] for one in events] == [False] * (len(events) - 1) + [True]


def test_stops_biases_and_probabilities(post, expected):
    found = post("/completion", **GREEDY, stop=[expected[3:5]], n_probs=2).json()
    assert (found["stop_type"], found["stopping_word"]) == ("word", expected[3:5])
    probabilities = found["completion_probabilities"]
    assert bytes(b for one in probabilities for b in one["bytes"]).decode() == found["content"]
    assert all(len(one["top_logprobs"]) == 2 for one in probabilities)
    barred = [[one["id"], False] for one in probabilities]
    other = post("/completion", **GREEDY, logit_bias=barred, return_tokens=True).json()
    assert not {token for token, _ in barred} & set(other["tokens"])
    schema = {"enum": [77]}
    assert post("/completion", **GREEDY, json_schema=schema).json()["content"] == "77"
    assert post("/completion", **GREEDY, cache_prompt=False).json()["tokens_cached"] == 0
    wrong = post("/completion", **GREEDY, logit_bias=[[3, "x"]])
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "logit_bias")


def test_text_between_two_needs_a_vocabulary_for_it(post, server, monkeypatch):
    asked = {"model": "plain", "input_prefix": "the", "input_suffix": "dog", "n_predict": 3}
    forms = {
        "/infill": {"input_prefix": "the", "input_suffix": "dog", "n_predict": 9, "temperature": 0},
        "/v1/completions": {"prompt": "the", "suffix": "dog", "max_tokens": 9, "temperature": 0},
        "/api/generate": {
            "prompt": "the", "suffix": "dog", "stream": False,
            "options": {"num_predict": 9, "temperature": 0, "top_k": 0, "top_p": 1.0},
        },
    }  # fmt: skip
    for path, form in forms.items():
        refused = post(path, model="plain", **form)
        assert (refused.status_code, "does not support insert" in refused.text) == (400, True)
    assert "insert" not in server.model().capabilities
    names = {"<fim_prefix>": 10, "<fim_suffix>": 11, "<fim_middle>": 12}
    monkeypatch.setattr(
        ServedModel, "find_token", lambda _, given: next(filter(None, map(names.get, given)), None)
    )
    assert "insert" in server.model().capabilities
    found = [post(path, model="plain", **form).json() for path, form in forms.items()]
    between, completed, generated = found
    assert between["content"] == completed["choices"][0]["text"] == generated["response"] != ""
    tokens = completed["usage"]["prompt_tokens"]
    assert tokens == between["tokens_evaluated"] == generated["prompt_eval_count"]
    asked["input_extra"] = [{"filename": "a.py", "text": "fox"}]
    encode = server.model().tokenizer.encode
    wanted = len(encode("fox\n") + encode("the") + encode("dog")) + 3
    assert post("/infill", **asked).json()["tokens_evaluated"] - wanted in (0, 1)


def test_tokens_and_properties(post, server):
    tokens = server.model().tokenizer.encode("the fox", special=False)
    found = post("/tokenize", model="plain", content="the fox", with_pieces=True).json()["tokens"]
    assert [one["id"] for one in found] == tokens
    assert "".join(one["piece"] for one in found) == "the fox"
    part = post("/tokenize", model="plain", content="ℵ", with_pieces=True).json()["tokens"]
    assert bytes(one["piece"][0] for one in part).decode() == "ℵ"
    about = httpx.get(f"{server.url}/props").json()
    assert about["default_generation_settings"]["n_ctx"] == 512
    about = httpx.get(f"{server.url}/tokenizer_info").json()
    assert (about["eos_token"], about["pad_token"]) == ("</s>", "<pad>")
    assert httpx.get(f"{server.url}/version").json()["version"]
    assert post("/detokenize", tokens=[99_999]).json()["error"]["code"] == "token-range"

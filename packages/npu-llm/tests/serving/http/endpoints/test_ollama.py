import json

import httpx
import pytest

from npu_llm.cli import main

ASKED = [{"role": "user", "content": "the quick brown fox"}]
GREEDY = {"model": "plain", "options": {"temperature": 0, "num_predict": 12}}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def post(server):
    def post(path, **fields):
        return httpx.post(f"{server.url}/api/{path}", json=fields, timeout=60)

    return post


@pytest.fixture(scope="module")
def expected(client):
    answer = client.chat.completions.create(
        model="plain", messages=ASKED, temperature=0, max_tokens=12
    )
    return answer.choices[0].message.content


def test_a_chat_has_the_text_of_openais(post, expected):
    whole = post("chat", **GREEDY, messages=ASKED, stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": expected}
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "length", 12)
    streamed = post("chat", **GREEDY, messages=ASKED)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == expected
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


def test_a_prompt_is_answered_as_a_chat_or_continued(post, client, expected):
    prompt = ASKED[0]["content"]
    assert post("generate", **GREEDY, prompt=prompt, stream=False).json()["response"] == expected
    raw = post("generate", **GREEDY, prompt=prompt, stream=False, raw=True).json()
    other = client.completions.create(model="plain", prompt=prompt, temperature=0, max_tokens=12)
    assert raw["response"] == other.choices[0].text


def test_an_answer_has_its_form_and_logprobs(post):
    form = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
    form["additionalProperties"] = False
    options = {"temperature": 0, "num_predict": 40, "stop": ["never"], "repeat_penalty": 1.1}
    found = post(
        "chat", model="plain", messages=ASKED, stream=False, format=form, options=options,
        logprobs=True, top_logprobs=1,
    ).json()  # fmt: skip
    assert json.loads(found["message"]["content"]) == {"a": 7}
    content = b"".join(bytes(one["bytes"]) for one in found["logprobs"])
    assert content.decode() == found["message"]["content"]


def test_earlier_calls_and_their_outputs_are_taken(post):
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    messages = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_name": "get_weather"},
    ]
    found = post("chat", **GREEDY | {"model": "tools"}, messages=messages, tools=[TOOL])
    assert json.loads(found.text.splitlines()[-1])["done"]


def test_sampling_is_ollamas_without_options(post):
    def answer(**options):
        asked = {"model": "plain", "messages": ASKED, "stream": False}
        options = {"num_predict": 24, "seed": 3, **options}
        return post("chat", **asked, options=options).json()["message"]["content"]

    assert answer() == answer(temperature=0.8, top_k=40, top_p=0.9)
    assert answer() != answer(temperature=1.0, top_k=0, top_p=1.0)


def test_continue_chats_and_completes_code(post, client, expected):
    shown = post("show", name="plain").json()
    assert shown["parameters"] == ""
    assert ".Suffix" not in shown["template"]  # else it sends `suffix`
    options = {
        "temperature": 0, "num_predict": 12, "num_ctx": 4096, "num_thread": 4, "mirostat": 0,
        "use_mmap": True, "stop": ["<fim_prefix>", "<|endoftext|>", "\n\n"],
    }  # fmt: skip
    asked = {"model": "plain", "options": options, "keep_alive": 1800, "stream": True}
    chat = post("chat", **asked, messages=[{**ASKED[0], "images": None}])
    lines = [json.loads(line) for line in chat.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == expected
    raw = post("generate", **asked, prompt="the quick", raw=True)
    lines = [json.loads(line) for line in raw.text.splitlines()]
    other = client.completions.create(
        model="plain", prompt="the quick", temperature=0, max_tokens=12
    )
    assert "".join(line["response"] for line in lines) == other.choices[0].text


def test_what_clients_look_for_first(server, post, capsys):
    assert httpx.get(server.url).text == "Ollama is running"
    assert httpx.get(f"{server.url}/api/version").json()["version"][0].isdigit()
    names = [one["model"] for one in httpx.get(f"{server.url}/api/tags").json()["models"]]
    assert names == ["plain", "tools"]
    assert "tools" in post("show", model="tools:latest").json()["capabilities"]
    assert post("show", model="plain").json()["capabilities"] == ["completion"]
    found = post("chat", model="plain:latest", messages=[]).json()
    assert (found["done"], found["done_reason"]) == (True, "load")
    loaded = [one["name"] for one in httpx.get(f"{server.url}/api/ps").json()["models"]]
    assert "plain" in loaded
    assert main(["ps", "--server", server.url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "CONTEXT"]
    assert ["plain", "512", "tokens"] in lines


def test_errors_are_texts(post):
    response = post("chat", model="other", messages=ASKED)
    assert response.status_code == 404
    assert response.json()["error"].endswith("[unknown-model]")
    response = post("generate", model="plain", prompt="a", suffix="b")
    assert (response.status_code, "suffix" in response.json()["error"]) == (400, True)


def test_vectors_are_those_of_encode(mixed, encoder):
    texts = ["the cat sat", "mat"]
    found = httpx.post(f"{mixed.url}/api/embed", json={"model": "vectors", "input": texts}).json()
    wanted = encoder.encode(texts).tolist()
    assert found["embeddings"][1] == pytest.approx(wanted[1], abs=1e-5)
    body = {"model": "vectors", "prompt": "mat"}
    older = httpx.post(f"{mixed.url}/api/embeddings", json=body).json()
    assert older["embedding"] == pytest.approx(wanted[1], abs=1e-5)

import base64
import struct
import threading

import httpx
import openai
import pytest
import torch

TEXTS = ["the cat sat", "where is the dog", "mat", "the dog sat where the cat is"]


def vectors_of(answer):
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return torch.tensor([one.embedding for one in answer.data])


@pytest.mark.parametrize("given", [{}, {"encoding_format": "float"}])  # {} is base64 by the client
def test_vectors_are_those_of_encode(mixed, encoder, given):
    answer = mixed.client().embeddings.create(model="vectors", input=TEXTS, **given)
    assert torch.allclose(vectors_of(answer), encoder.encode(TEXTS), atol=1e-5)
    tokens = sum(map(len, encoder.tokenizer(TEXTS)["input_ids"]))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    assert (answer.model, answer.object) == ("vectors", "list")


def test_base64_is_float32_with_the_least_byte_first(mixed, encoder):
    body = {"model": "vectors", "input": "mat", "encoding_format": "base64"}
    text = httpx.post(f"{mixed.url}/v1/embeddings", json=body).json()["data"][0]["embedding"]
    values = struct.unpack("<32f", base64.b64decode(text))
    assert torch.allclose(torch.tensor(values), encoder.encode("mat"), atol=1e-5)


def test_one_text_tokens_and_lists_of_tokens_are_taken(mixed, encoder):
    client = mixed.client()
    ids = encoder.tokenizer(TEXTS[:2])["input_ids"]
    wanted = encoder.encode(TEXTS[:2])
    for given, count in ((TEXTS[0], 1), (ids[0], 1), (ids, 2)):
        found = vectors_of(client.embeddings.create(model="vectors", input=given))
        assert torch.allclose(found, wanted[:count], atol=1e-5)


def test_many_texts_keep_their_order(mixed, encoder):
    texts = [" ".join(["cat"] * (number % 7) + ["dog", "the"]) for number in range(150)]
    answer = mixed.client().embeddings.create(model="vectors", input=texts)
    assert torch.allclose(vectors_of(answer), encoder.encode(texts), atol=1e-5)


def test_dimensions_are_those_that_the_model_was_trained_for(mixed, encoder):
    client = mixed.client()
    whole = encoder.encode("the cat")
    for size in (12, 32):
        found = vectors_of(
            client.embeddings.create(model="vectors", input="the cat", dimensions=size)
        )
        assert torch.allclose(found[0], whole[:size], atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="12, 32, as vectors") as caught:
        client.embeddings.create(model="vectors", input="the cat", dimensions=13)
    assert caught.value.code == "vector-size"


@pytest.mark.parametrize(
    "given, code",
    [
        ({"input": ""}, "request-field"),
        ({"input": []}, "request-field"),
        ({"input": ["mat", ""]}, "request-field"),
        ({"input": ["mat", [1]]}, "request-field"),
        ({"input": ["mat"] * 2049}, "request-field"),
        ({"input": [-1]}, "request-field"),
        ({"input": [5, 11]}, "token-range"),
        ({"input": [[4] * 41]}, "context-overflow"),
        ({"input": "cat " * 39}, "context-overflow"),
        ({"input": "mat", "encoding_format": "int8"}, "request-field"),
        ({"input": "mat", "truncate": True}, "request-unsupported"),
        ({"input": "mat", "model": "plain"}, "model-endpoint"),
        ({"input": "mat", "model": "other"}, "unknown-model"),
    ],
)
def test_what_is_not_done_is_refused_by_name(mixed, given, code):
    response = httpx.post(f"{mixed.url}/v1/embeddings", json={"model": "vectors", **given})
    assert response.status_code == (404 if code == "unknown-model" else 400)
    assert response.json()["error"]["code"] == code


def test_both_kinds_of_model_are_in_one_server(mixed):
    client = mixed.client()
    assert [one.id for one in client.models.list()] == ["plain", "vectors"]
    said = client.chat.completions.create(
        model="plain", messages=[{"role": "user", "content": "the"}], max_tokens=3
    )
    assert 0 < said.usage.completion_tokens <= 3
    nameless = httpx.post(f"{mixed.url}/v1/embeddings", json={"input": "mat"}).json()
    assert nameless["model"] == "vectors"
    with pytest.raises(openai.BadRequestError, match="model-endpoint"):
        client.completions.create(model="vectors", prompt="the")
    assert httpx.get(f"{mixed.url}/health").json() == {
        "status": "ok",
        "loaded": ["plain", "vectors"],
    }
    figures = httpx.get(f"{mixed.url}/metrics").text
    assert 'vllm:num_requests_waiting{model_name="vectors"} 0.0' in figures
    assert 'vllm:e2e_request_latency_seconds_count{model_name="vectors"}' in figures


def test_requests_at_once_are_answered_or_told_to_wait(mixed, monkeypatch):
    client = mixed.client()
    client.embeddings.create(model="vectors", input="mat")
    served = mixed.model("vectors")
    monkeypatch.setattr(served._turns, "_most_waiting", 1)
    held, real = threading.Event(), served.model.encode_tokens
    begun = threading.Event()

    def slow(batch):
        begun.set()
        assert held.wait(30)
        return real(batch)

    monkeypatch.setattr(served.model, "encode_tokens", slow)
    got = []
    ask = lambda: got.append(client.embeddings.create(model="vectors", input="mat"))  # noqa: E731
    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(30)
    with pytest.raises(openai.RateLimitError, match="server-busy"):
        client.embeddings.create(model="vectors", input="mat")
    held.set()
    thread.join(30)
    assert len(got) == 1


def test_vectors_that_are_not_finite_are_not_sent(mixed, monkeypatch):
    client = mixed.client()
    client.embeddings.create(model="vectors", input="mat")
    model = mixed.model("vectors").model
    monkeypatch.setattr(
        model, "encode_tokens", lambda batch: torch.full((len(batch), 32), torch.nan)
    )
    with pytest.raises(openai.InternalServerError, match="server-failure"):
        client.embeddings.create(model="vectors", input="mat")

import base64
import io
import json
import re
import struct
import threading
import time
import wave

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import AutoFeatureExtractor, AutoTokenizer

from npu_llm.encoder_decoders.caches import SessionCrossCache, StaticCrossCache
from npu_llm.encoder_decoders.models import NPUModelForSpeechSeq2Seq
from npu_llm.engine.engine import EngineOptions
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.task_models import ServedReranker, ServedSpeech
from npu_llm.speech.transcriber import Transcriber
from npu_llm.speech.transcript import TranscriptOptions
from npu_llm.speech.wave_file import read_samples
from npu_llm.tasks.models import Ranked

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
    with pytest.raises(openai.BadRequestError, match="12, 32 for vectors") as caught:
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
    monkeypatch.setattr(served._executor, "_max_waiting", 1)
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


def sound(seconds, rate=16000):
    at = np.arange(int(seconds * rate)) / rate
    values = np.sin(2 * np.pi * (200 + 40 * np.floor(at)) * at) * 8000
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(values.astype("<i2").tobytes())
    return content.getvalue()


@pytest.fixture(scope="module")
def transcriber(whisper, shared):
    model = shared.load(NPUModelForSpeechSeq2Seq, whisper, dtype="float32")
    extractor = AutoFeatureExtractor.from_pretrained(whisper)
    return Transcriber(model, extractor, AutoTokenizer.from_pretrained(whisper))


@pytest.fixture(scope="module")
def hearing(transcriber, speakers, serve_loaders):
    """A server of a speech model, "ears", and of a language model."""
    loaders = {
        "plain": lambda: ServedModel("plain", speakers("plain"), EngineOptions()),
        "ears": lambda: ServedSpeech("ears", transcriber),
    }
    with serve_loaders(loaders, kinds={"ears": ServedSpeech}) as running:
        yield running


@pytest.fixture(scope="module")
def ask(hearing):
    client = hearing.client()

    def ask(content=None, **more):
        file = ("said.wav", sound(3) if content is None else content)
        given = {"model": "ears", "file": file, "language": "en", **more}
        return client.audio.transcriptions.create(**given)

    return ask


def test_formats_are_openais_and_hold_the_same_words(ask, transcriber):
    wanted = transcriber.run(
        read_samples("s", sound(3), rate=16000), TranscriptOptions(language="en", times="segment")
    )
    found = ask(response_format="verbose_json")
    assert [one.text for one in found.segments] == [one.text for one in wanted.passages]
    assert (found.duration, found.language) == (3.0, "en")
    assert all(0 <= one.start <= one.end <= 3.0 for one in found.segments)
    assert ask().text == ask(response_format="text").strip()
    assert ask(response_format="vtt").startswith("WEBVTT\n")
    for kind, mark in (("srt", ","), ("vtt", ".")):
        times = re.findall(rf"\d\d:\d\d:\d\d\{mark}\d{{3}} --> ", ask(response_format=kind))
        assert len(times) == len(wanted.passages)


# transformers takes the deviation of one token.
@pytest.mark.filterwarnings("ignore:std")
def test_words_have_times(ask):
    found = ask(sound(5), response_format="verbose_json", timestamp_granularities=["word"])
    assert found.words
    assert all(0 <= one.start <= one.end <= 5.0 for one in found.words)


@pytest.mark.parametrize(
    "changes, code, parameter",
    [
        ({"content": b"RIFF nothing"}, "audio-unreadable", None),
        ({"content": sound(1, rate=8000)}, "audio-rate", None),
        ({"content": sound(0)}, "audio-empty", None),
        ({"language": "klingon"}, "speech-option", None),
        ({"temperature": 3}, "request-field", "temperature"),
        ({"prompt": "As I said"}, "request-unsupported", "prompt"),
        ({"stream": True}, "request-unsupported", "stream"),
        (
            {"timestamp_granularities": ["word"]},
            "request-field",
            "timestamp_granularities[]",
        ),
        ({"model": "plain"}, "model-endpoint", None),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(ask, changes, code, parameter):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(**changes)
    assert (refused.value.code, refused.value.param) == (code, parameter)


@pytest.mark.parametrize("stream", [False, True])
def test_a_sound_in_a_chat_is_transcribed(hearing, transcriber, stream):
    wanted = transcriber.run(read_samples("s", sound(3), rate=16000), TranscriptOptions()).text
    data = {"data": base64.b64encode(sound(3)).decode(), "format": "wav"}
    content = [{"type": "input_audio", "input_audio": data}]
    answer = hearing.client().chat.completions.create(
        model="ears", messages=[{"role": "user", "content": content}], stream=stream
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    assert text == wanted.strip()


def test_a_chat_without_a_sound_is_refused(hearing):
    with pytest.raises(openai.BadRequestError, match="`messages` must end with one audio input"):
        hearing.client().chat.completions.create(
            model="ears", messages=[{"role": "user", "content": "the"}]
        )


def post(hearing, **more):
    return httpx.post(f"{hearing.url}/v1/audio/transcriptions", timeout=60, **more)


def test_forms_that_are_none_are_refused(hearing):
    kind = {"content-type": "multipart/form-data; boundary=x"}
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    for more, code in (
        ({"json": {}}, "request-type"),
        ({"headers": {"content-type": "multipart/form-data"}, "content": b"x"}, "request-form"),
        ({"headers": kind, "content": b"nothing of a form"}, "request-form"),
        ({"headers": kind, "content": part * 80 + b"--x--\r\n"}, "request-form"),
        ({"files": {"other": b"x"}}, "request-field"),
        ({"data": {"file": "text"}, "files": {"other": b"x"}}, "request-field"),
        ({"files": {"file": b"x" * (26 << 20)}}, "request-size"),
    ):
        response = post(hearing, **more)
        assert response.json()["error"]["code"] == code, more.keys()
        assert 400 <= response.status_code < 500


def test_pages_of_other_sites_cannot_send_forms(hearing):
    files = {"file": sound(1)}
    response = post(hearing, files=files, headers={"origin": "https://evil.example"})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "server-host")
    assert post(hearing, files=files, headers={"origin": hearing.url}).status_code == 200


def test_a_client_that_leaves_ends_its_transcript(hearing, monkeypatch):
    tokens = []

    def slowed(step):
        def slow(self, *args, **kwargs):
            tokens.append(time.monotonic())
            time.sleep(0.1)
            return step(self, *args, **kwargs)

        return slow

    for cache in (SessionCrossCache, StaticCrossCache):  # the second is an NPU's
        monkeypatch.setattr(cache, "next", slowed(cache.next))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{hearing.url}/v1/audio/transcriptions", files={"file": sound(65)}, timeout=1.5)
    left = time.monotonic()
    served = hearing.model("ears")
    while served._executor._thread._work_queue.qsize() or served.waiting:
        time.sleep(0.02)
        assert time.monotonic() < left + 10
    time.sleep(0.5)
    assert tokens
    assert tokens[-1] < left + 1
    monkeypatch.undo()
    assert json.loads(post(hearing, files={"file": sound(1)}).text).keys() == {"text"}


class Judge:
    """Stands for a cross-encoder: the score is the share of the query's words in a document."""

    context_length = 40

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def rerank(self, query, documents):
        words = query.split()
        scores = [sum(word in one for word in words) / len(words) for one in documents]
        best = sorted(range(len(documents)), key=lambda index: -scores[index])
        return [Ranked(index, scores[index], documents[index]) for index in best]


@pytest.fixture(scope="module")
def judging(encoder, serve_loaders):
    load = lambda: ServedReranker("judge", Judge(encoder.tokenizer))  # noqa: E731
    with serve_loaders({"judge": load}, kinds={"judge": ServedReranker}) as running:
        yield running


def test_documents_are_ordered_by_a_cross_encoder(judging):
    body = {"query": "the dog", "documents": [*TEXTS, {"text": "cat"}][:4], "top_n": 2}
    found = httpx.post(f"{judging.url}/v1/rerank", json=body).json()
    assert [one["index"] for one in found["results"]] == [1, 3]
    assert found["results"][0]["relevance_score"] == 1.0
    assert found["results"][0]["document"] == {"text": TEXTS[1]}
    assert found["usage"]["total_tokens"] > 8
    pairs = {"model": "judge", "text_1": "cat", "text_2": TEXTS[:3]}
    found = httpx.post(f"{judging.url}/score", json=pairs).json()
    assert [one["score"] for one in found["data"]] == [1.0, 0.0, 0.0]
    refused = httpx.post(f"{judging.url}/score", json=pairs | {"text_1": ["a", "b"]})
    assert refused.json()["error"]["param"] == "text_2"
    assert judging.model("judge").waiting == 0


def test_documents_are_ordered_by_vectors_too(mixed, encoder):
    body = {"model": "vectors", "query": "the cat", "documents": TEXTS}
    body["return_documents"] = False
    found = httpx.post(f"{mixed.url}/rerank", json=body).json()
    vectors = torch.nn.functional.normalize(encoder.encode(["the cat", *TEXTS]))
    wanted = (vectors[1:] @ vectors[0]).tolist()
    scores = {one["index"]: one["relevance_score"] for one in found["results"]}
    assert [scores[index] for index in range(4)] == pytest.approx(wanted, abs=1e-5)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert "document" not in found["results"][0]

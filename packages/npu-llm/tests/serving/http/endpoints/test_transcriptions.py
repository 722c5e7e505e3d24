import io
import json
import re
import time
import wave

import httpx
import numpy as np
import openai
import pytest
from transformers import AutoFeatureExtractor, AutoTokenizer

from npu_llm.encoder_decoders.models import NPUModelForSpeechSeq2Seq
from npu_llm.encoder_decoders.session_cross_cache import SessionCrossCache
from npu_llm.encoder_decoders.static_cross_cache import StaticCrossCache
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.served_speech import ServedSpeech
from npu_llm.serving.scheduling.engine import EngineOptions
from npu_llm.speech.transcriber import Transcriber
from npu_llm.speech.transcript import TranscriptOptions
from npu_llm.speech.wave_file import read_samples


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
    """A server of a model of speech, "ears", beside one that writes."""
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
    while served._turns._thread._work_queue.qsize() or served.waiting:
        time.sleep(0.02)
        assert time.monotonic() < left + 10
    time.sleep(0.5)
    assert tokens
    assert tokens[-1] < left + 1
    monkeypatch.undo()
    assert json.loads(post(hearing, files={"file": sound(1)}).text).keys() == {"text"}

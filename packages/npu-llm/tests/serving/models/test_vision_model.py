import base64
import io

import httpx
import openai
import pytest
import torch
from PIL import Image

from npu_llm import NPUModelForImageTextToText
from npu_llm.engine.engine import EngineOptions
from npu_llm.serving.models.vision_model import ServedVisionModel
from npu_llm.vision_language.prompting import load_processor, prompt_inputs

PICTURE = Image.effect_noise((40, 50), 90).convert("RGB")


def url_of(picture):
    content = io.BytesIO()
    picture.save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


ASKED = [
    {"type": "image_url", "image_url": {"url": url_of(PICTURE)}},
    {"type": "text", "text": "what is this ?"},
]


@pytest.fixture(scope="module")
def model(llava, shared):
    return shared.load(NPUModelForImageTextToText, llava, dtype="float32")


@pytest.fixture(scope="module")
def seeing(model, llava, serve_loaders):
    def load():
        processor = load_processor(str(llava))
        return ServedVisionModel("eyes", model, processor, EngineOptions(max_waiting=3))

    with serve_loaders({"eyes": load}) as running:
        yield running


@pytest.fixture(scope="module")
def ask(seeing):
    client = seeing.client()

    def ask(content=ASKED, **more):
        given = {"model": "eyes", "temperature": 0, "max_tokens": 6, **more}
        messages = [{"role": "user", "content": content}]
        return client.chat.completions.create(messages=messages, **given)

    return ask


def test_an_answer_is_that_of_generate(ask, model, llava, seeing):
    processor = load_processor(str(llava))
    content = [{"type": "image", "image": PICTURE}, {"type": "text", "text": "what is this ?"}]
    inputs = prompt_inputs(processor, [{"role": "user", "content": content}])
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=None)
    new = output[0, inputs["input_ids"].shape[1] :]
    wanted = processor.tokenizer.decode(new, skip_special_tokens=True)
    whole = ask(extra_body={"ignore_eos": True}, logprobs=True)
    assert whole.choices[0].message.content == wanted
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens == 6
    chunks = ask(extra_body={"ignore_eos": True}, stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == wanted
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
             "data": url_of(PICTURE).partition(",")[2]}}  # fmt: skip
    body = {"model": "eyes", "max_tokens": 6, "temperature": 0}
    body["messages"] = [{"role": "user", "content": [image, ASKED[1]]}]
    found = httpx.post(f"{seeing.url}/v1/messages", json=body, timeout=60).json()
    assert whole.choices[0].message.content.startswith(found["content"][0]["text"])
    assert (
        "vision"
        in httpx.post(f"{seeing.url}/api/show", json={"model": "eyes"}).json()["capabilities"]
    )


def test_samplers_are_those_of_the_engine(ask):
    first, again = (ask(temperature=3.0, seed=5).choices[0].message.content for _ in range(2))
    assert first == again
    assert ask(logit_bias={"20": 100}, max_tokens=2).choices[0].message.content == "w4 w4"
    assert len(ask(n=2).choices) == 2


@pytest.mark.parametrize(
    "content, code",
    [
        ([{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}],
         "request-unsupported"),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "request-field"),
        ([{"type": "image_url", "image_url": {"url": "data:;base64,!"}}], "request-field"),
        ([{"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}], "image-unreadable"),
        ([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}],
         "request-unsupported"),
        ("what <image> is", "request-field"),
    ],
)  # fmt: skip
def test_what_cannot_be_seen_is_refused(ask, content, code):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(content)
    assert refused.value.code == code


def test_models_of_text_refuse_images(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="plain", messages=[{"role": "user", "content": ASKED}])
    assert (refused.value.code, refused.value.param) == ("request-unsupported", "messages")

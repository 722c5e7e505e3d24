import json

import pytest

from npu_llm.serving.replicas.beginnings import beginning_of

SYSTEM = {"role": "system", "content": "be brief"}


def chat(*messages, **more):
    return beginning_of(json.dumps({"model": "m", "messages": messages, **more}).encode())


def test_what_begins_alike_has_one_name():
    one = chat(SYSTEM, {"role": "user", "content": "a"})
    assert one == chat(SYSTEM, {"role": "user", "content": "b"}, temperature=0)
    assert one != chat({"role": "user", "content": "b"})
    assert one != chat(SYSTEM, model="other")
    assert len(one) == 16
    assert chat(SYSTEM, prompt_cache_key="x") == chat(prompt_cache_key="x")


@pytest.mark.parametrize("prompt", ["some text", ["some text", "b"], [5, 6, 7], [[5, 6], [7]]])
def test_prompts_of_each_kind_have_one(prompt):
    first = beginning_of(json.dumps({"prompt": prompt}).encode())
    assert first
    assert first == beginning_of(json.dumps({"prompt": prompt, "max_tokens": 4}).encode())


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff", b"[" * 90_000, b'{"messages": 5}', b"{}"])
def test_what_has_no_text_has_none(body):
    assert beginning_of(body) == ""

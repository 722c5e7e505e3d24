"""Chat templates rendered in a worker process: transformers' results, within limits."""

from __future__ import annotations

import time

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from npu_llm.errors import OptionError
from npu_llm.tokenizer import chat_template
from npu_llm.tokenizer.tokenizer import encode_chat

_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "a < b & 'é' \U0001f600"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": "f", "arguments": {"x": [1, None]}}],
    },
]
_TEMPLATES = {
    "plain": "{% for m in messages %}<{{ m.role }}> {{ m['content'] | trim }}\n{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages[2].tool_calls | tojson(indent=2) }}{{ tools }}",
    "controls": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}"
    "{% break %}{% endfor %}",
    "marked": "{% set n = 1 %}{% generation %}{% set n = 2 %}x{% endgeneration %}{{ n }}",
    "names": "{% set ns = namespace(seen=0) %}{% for m in messages %}"
    "{% set ns.seen = ns.seen + 1 %}{% endfor %}{{ ns.seen }}{{ dict(a=1) }}",
    "macro": "{% macro say(m) %}[{{ m.role }}]{% endmacro %}{% for m in messages %}{{ say(m) }}"
    "{% endfor %}{% if add_generation_prompt %}go{% endif %}{{ extra }}",
    "date": "{{ strftime_now('%Y') }}",
}
_UNBOUNDED = {
    "text": "{{ 'a' * 10000000000 }}",
    "computed text": "{{ 'a' * (messages | length * 10000000000) }}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "nesting": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "padding": "{{ '%10000000000d' % 1 }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{{ messages | length ** 99999999 ** 2 }}",
    "answer": "{% for a in range(60000) %}" + "x" * 1000 + "{% endfor %}",
}


def rendered(template, **options):
    return chat_template_utils.render_jinja_template(
        conversations=[_MESSAGES], chat_template=template, add_generation_prompt=True, **options
    )[0]


@pytest.mark.parametrize("name", sorted(_TEMPLATES))
def test_a_template_gives_the_text_that_transformers_makes(name):
    options = {"extra": "more", "tools": [{"type": "function", "function": {"name": "f"}}]}
    expected = rendered(_TEMPLATES[name], **options)
    with chat_template.bounded_templates():
        assert rendered(_TEMPLATES[name], **options) == expected


@pytest.mark.parametrize("name", sorted(_UNBOUNDED))
def test_a_template_without_bound_is_an_error_and_the_next_one_works(name, monkeypatch):
    monkeypatch.setattr(chat_template, "_SECONDS", 2.0)
    chat_template._renderer.end()  # the bound is passed to a new process
    with chat_template.bounded_templates():
        with pytest.raises(OptionError) as caught:
            rendered(_UNBOUNDED[name])
        assert caught.value.code == "template-limit"
        assert rendered("{{ messages[0].role }}") == ["system"]


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    plain = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?")


@pytest.mark.parametrize(
    "template, code, quoted",
    [
        ("{{ raise_exception('no tools here') }}", "chat-template", "no tools here"),
        ("{{ nothing.at.all }}", "chat-template", "undefined"),
        ("{{ 1 + 'a' }}", "chat-template", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "chat-template", "unsafe"),
        ("{% for %}", "chat-template", "Expected"),
        ("{{ 'a' * 10000000000 }}", "template-limit", "512 MB"),
    ],
)
def test_what_a_template_does_wrong_is_one_error(tokenizer, template, code, quoted):
    tokenizer.chat_template = template
    with pytest.raises(OptionError) as caught:
        encode_chat(tokenizer, [{"role": "user", "content": "a b"}])
    assert caught.value.code == code
    assert quoted in str(caught.value)


def test_messages_that_are_no_text_are_an_error(tokenizer):
    tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(OptionError) as caught:
        encode_chat(tokenizer, [{"role": "user", "content": "a \udcff"}])
    assert caught.value.code == "text-encoding"


def test_a_template_costs_no_time_once_the_process_is_there(tokenizer):
    tokenizer.chat_template = _TEMPLATES["plain"]
    encode_chat(tokenizer, _MESSAGES)
    started = time.perf_counter()
    for _ in range(20):
        encode_chat(tokenizer, _MESSAGES)
    assert time.perf_counter() - started < 2


def test_transformers_is_as_it_was_afterwards():
    before = chat_template_utils._compile_jinja_template
    with chat_template.bounded_templates():
        assert chat_template_utils._compile_jinja_template is not before
    assert chat_template_utils._compile_jinja_template is before


def test_a_process_that_was_started_early_is_the_one_that_renders():
    chat_template._renderer.end()
    chat_template.start_early()
    early = chat_template._renderer._process
    assert chat_template.render("{{ 1 + 1 }}", {}) == "2"
    chat_template.start_early()
    assert chat_template._renderer._process is early

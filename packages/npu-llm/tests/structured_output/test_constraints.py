import json
import random
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jsonschema
import llguidance
import pytest
import torch

from npu_llm import NPUModelForCausalLM
from npu_llm.errors import OptionError
from npu_llm.structured_output import ConstraintMaker, Form, constraints, given_form


@pytest.fixture(scope="module")
def speaker(saved_speaker, shared):
    # More logits than tokens, as real models have.
    folder = saved_speaker(context=512, logits=7)
    return shared.load(NPUModelForCausalLM, folder, dtype="float32")


@pytest.mark.parametrize(
    "options",
    [
        {"schema": {"type": "nothing"}},
        {"schema": {"$ref": "http://example.invalid/x"}},
        {"schema": {"type": "string", "pattern": "(a"}},
        {"schema": {"enum": [float("nan")]}},
        {"schema": "not a mapping"},
        {"regex": "["},
        {"regex": "(?=a)b"},
        {"regex": 3},
        {"grammar": "start: ("},
        {"grammar": "other: 'a'"},
        {"regex": "a", "schema": {"type": "object"}},
    ],
)
def test_what_cannot_bound_an_answer_is_refused(options):
    with pytest.raises(OptionError, match="answer-form"):
        given_form(options)


def test_options_without_a_form_stay():
    options = {"max_new_tokens": 3, "schema": None}
    assert given_form(options) is None
    assert options == {"max_new_tokens": 3}
    assert given_form({"regex": "a+"}) == Form.of_regex("a+")


def test_the_library_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(OptionError, match=r"npu-llm\[structured\].*missing-llguidance"):
        Form.of_json()


KINDS = [
    {"type": "integer", "minimum": -5, "maximum": 300},
    {"type": "string", "maxLength": 5},
    {"type": "boolean"},
    {"enum": ["a", None, 3]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "string", "pattern": "^[ab]{2,4}$"},
    {"anyOf": [{"type": "null"}, {"const": "é🙂"}]},
]


def schemas(count):
    """Schemas of objects, each with some of the kinds."""
    numbers = random.Random(6)
    for _ in range(count):
        names = numbers.sample(["name", "city", "n 1", 'q"', "é"], numbers.randint(1, 4))
        yield {
            "type": "object",
            "properties": {name: numbers.choice(KINDS) for name in names},
            "required": names[: numbers.randint(1, len(names))],
            "additionalProperties": False,
        }


@pytest.fixture(scope="module")
def maker(speaker):
    return ConstraintMaker(speaker.tokenizer, vocabulary=speaker.vocabulary, ends=[2])


def drawn(constraint, tokenizer, vocabulary, seed):
    """A text of random tokens that the constraint allows."""
    generator = torch.Generator().manual_seed(seed)
    tokens = []
    while not constraint.is_over and len(tokens) < 400:
        scores = constraint.mask(torch.rand(vocabulary, generator=generator))
        tokens.append(int(scores.argmax()))
        constraint.advance(tokens[-1])
    return tokenizer.decode(tokens, skip_special_tokens=True), constraint.is_over


def test_random_answers_are_valid_under_many_schemas(maker, speaker):
    ended = 0
    for seed, schema in enumerate(schemas(60)):
        constraint = maker.make(Form.of_schema(schema))
        text, is_over = drawn(constraint, speaker.tokenizer, speaker.vocabulary, seed)
        if is_over:
            ended += 1
            jsonschema.validate(json.loads(text), schema)
    assert ended > 50


def test_tokens_beyond_the_vocabulary_never_come(maker, speaker):
    constraint = maker.make(Form.of_regex("(.|\n)*"))
    scores = constraint.mask(torch.zeros(speaker.vocabulary))
    assert scores[-7:].isinf().all()
    assert scores[:3].isinf().tolist() == [True, True, False]  # the end may come, others not


def test_a_token_that_may_not_come_is_refused(maker, speaker):
    constraint = maker.make(Form.of_regex("ab"))
    wrong = speaker.tokenizer("z")["input_ids"][0]
    with pytest.raises(OptionError, match="answer-form"):
        constraint.advance(wrong)


def test_a_form_is_compiled_once_by_many_threads_and_costly_ones_are_not_kept(speaker, monkeypatch):
    maker = ConstraintMaker(speaker.tokenizer, vocabulary=speaker.vocabulary, ends=[2])
    maker.prepare()
    compiled = []

    def compile_slowly(known, source, **options):
        compiled.append(source)
        time.sleep(0.05)
        return llguidance.LLMatcher(known, source, **options)

    library = SimpleNamespace(LLMatcher=compile_slowly)
    monkeypatch.setattr(constraints, "llguidance", lambda: library)
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(maker.make, [Form.of_regex("ab")] * 4))) == 4
    assert len(compiled) == 1
    seconds = iter((0.0, 20.0, 20.0, 20.0, 20.0, 40.0))
    monkeypatch.setattr(time, "thread_time", lambda: next(seconds))
    for pattern in ("costly", "cheap", "costly"):
        maker.make(Form.of_regex(pattern))
    assert len(compiled) == 4


def test_a_tokenizer_of_another_kind_is_refused():
    with pytest.raises(OptionError, match="fast tokenizer, got one for a object"):
        ConstraintMaker(object(), vocabulary=9, ends=[1]).make(Form.of_json())


def test_generate_holds_all_rows_to_the_form(speaker):
    tokenizer = speaker.tokenizer
    ids = torch.tensor([tokenizer("true")["input_ids"][:1], tokenizer("city")["input_ids"][:1]])
    torch.manual_seed(1)
    output = speaker.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=True,
        regex="[a-f]{3,12}!",
    )  # fmt: skip
    texts = tokenizer.batch_decode(output[:, 1:], skip_special_tokens=True)
    assert all(re.fullmatch("[a-f]{3,12}!", text) for text in texts)
    assert texts[0] != texts[1]


def test_a_session_answers_in_the_form_of_a_schema(speaker):
    from npu_llm import ChatSession

    session = ChatSession(speaker, max_new_tokens=200)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    reply = session.ask("name", schema=schema, do_sample=False)
    assert json.loads(reply.text)["a"] in (1, 2)
    assert reply.finish == "stop"
    assert session.ask("city", schema=schema).finish == "stop"


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"prompt_lookup_num_tokens": 3}])
def test_searches_that_take_tokens_back_are_refused(speaker, options):
    ids = torch.tensor([[5, 6]])
    with pytest.raises(OptionError, match=r"greedy search or sampling.*answer-form"):
        speaker.generate(input_ids=ids, schema={"type": "object"}, **options)

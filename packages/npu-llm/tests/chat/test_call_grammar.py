"""Grammars of required tool calls: everything that they allow is parsed as valid calls."""

import contextlib
import json
import random

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from npu_llm.chat.call_grammar import call_grammar
from npu_llm.chat.call_styles import CALL_STYLES
from npu_llm.chat.output_parser import OutputParser
from npu_llm.errors import OptionError
from npu_llm.structured_output import ConstraintMaker, Form

STYLES = {style.name: style for style in CALL_STYLES}
SEARCH = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 6},
        "count": {"$ref": "#/$defs/count"},
        "kind": {"enum": ["a", "b c"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["count", "kind"],
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer", "minimum": 0, "maximum": 99}},
}
FUNCTIONS = [{"name": "search", "parameters": SEARCH}, {"name": "stop"}]
END = 256
SPECIAL = sorted(
    {mark for style in CALL_STYLES for mark in style.marks if mark.startswith(("<|", "<｜"))}
    - {'<|"|>'}
)


@pytest.fixture(scope="module")
def tokenizer():
    """One token a byte, an end, and most marks as special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens(["<end>", *SPECIAL])
    return tokens


@pytest.fixture(scope="module")
def maker(tokenizer):
    class Wrapped:
        backend_tokenizer = tokenizer

    return ConstraintMaker(Wrapped, vocabulary=tokenizer.get_vocab_size(), ends=[END])


def drawn(maker, tokenizer, form, numbers):
    """A text of random tokens that a form allows; None if it becomes long."""
    constraint, tokens = maker.make(form), []
    likely = torch.tensor([tokenizer.token_to_id(text) for text in '"<]}'])
    for _ in range(800):
        allowed = constraint.mask(torch.zeros(tokenizer.get_vocab_size())) == 0
        if allowed[END] and numbers.random() < 0.6:
            return tokenizer.decode(tokens, skip_special_tokens=False)
        choices = allowed.nonzero().flatten().tolist()
        closing = [token for token in likely.tolist() if allowed[token]]
        chosen = numbers.choice(closing if closing and numbers.random() < 0.4 else choices)
        if chosen == END:
            continue
        constraint.advance(chosen)
        tokens.append(chosen)
        if constraint.is_over:
            return tokenizer.decode(tokens, skip_special_tokens=False)
    return None


@pytest.mark.parametrize("style", STYLES)
def test_answers_are_calls_with_valid_arguments(style, maker, tokenizer):
    style, count = STYLES[style], 0
    special = {text: tokenizer.token_to_id(text) for text in SPECIAL}
    several = Form.of_grammar(call_grammar(style, FUNCTIONS, special, is_parallel=True))
    one = Form.of_grammar(call_grammar(style, FUNCTIONS, special, name="search"))
    for seed, form in enumerate((several, one) * 2):
        text = drawn(maker, tokenizer, form, random.Random(seed))
        if text is None:
            continue
        parser = OutputParser(None, style, FUNCTIONS, is_stream=False)
        parser.take(text)
        parser.end()
        assert parser.parsed.calls, text
        assert not parser.parsed.content, text
        for call in parser.parsed.calls:
            count += 1
            schema = {**SEARCH, "properties": {**SEARCH["properties"]}}
            if style.kind in ("tags", "braces"):  # text without quotes has no bound
                schema["properties"]["text"] = {"type": "string"}
            if call.name == "search":
                jsonschema.validate(json.loads(call.arguments), schema)
            else:
                assert json.loads(call.arguments) == {}
    assert count


def test_a_named_function_is_the_only_one(maker, tokenizer):
    grammar = call_grammar(STYLES["hermes"], FUNCTIONS, {}, name="stop")
    assert "search" not in grammar
    text = drawn(maker, tokenizer, Form.of_grammar(grammar), random.Random(1))
    parts = text.split()
    assert parts[:4] == ["<tool_call>", '{"name":', '"stop",', '"arguments":']


WRONG = [
    {"properties": "x"},
    {"properties": {"a": 3}, "required": "a"},
    {"properties": {"a": {"enum": 5}}},
]


@pytest.mark.parametrize("parameters", WRONG)
@pytest.mark.parametrize("style", ["hermes", "qwen3-coder", "llama-4", "gemma-4"])
def test_schemas_that_are_none_are_refused_or_read_as_any(style, parameters):
    functions = [{"name": "f", "parameters": parameters}]
    with contextlib.suppress(OptionError):
        Form.of_grammar(call_grammar(STYLES[style], functions, {}))
    parser = OutputParser(None, STYLES[style], functions)
    parser.take("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>")
    parser.end()

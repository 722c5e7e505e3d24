"""OutputFormat: the marks of a model as tokens, and required calls after reasoning."""

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Tokens
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from npu_llm.chat.output_format import OutputFormat
from npu_llm.structured_output import ConstraintMaker, Form
from npu_llm.tokenizer.tokenizer import Tokenizer

HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>"]
TEMPLATES = {
    "harmony": (
        "{{ tools }}<|start|>assistant<|channel|>analysis<|message|>",
        [*HARMONY, "<|other|>"],
    ),
    "hermes": ("{{ tools }}<think>\n<tool_call>", ["<|other|>"]),
}
FUNCTIONS = [
    {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"n": {"enum": [1, 2]}},
            "required": ["n"],
            "additionalProperties": False,
        },
    }
]


@pytest.fixture(params=TEMPLATES)
def known(request):
    """A format, a maker of constraints, and the token that ends an answer."""
    template, special = TEMPLATES[request.param]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokens(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens([*special, "<end>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<end>")
    fast.chat_template = template
    tokenizer = Tokenizer(Path(), wrapped=fast)
    end = tokens.token_to_id("<end>")
    maker = ConstraintMaker(tokenizer, vocabulary=len(fast), ends=[end])
    return OutputFormat(tokenizer), maker, end, tokenizer


def written(constraint, end, prefer=()):
    """Random tokens that a constraint allows, some of which are preferred."""
    numbers, tokens = random.Random(4), []
    for _ in range(400):
        allowed = constraint.mask(torch.zeros(end + 1)) == 0
        choices = allowed.nonzero().flatten().tolist()
        better = [token for token in choices if token in prefer]
        token = numbers.choice(better or choices)
        if token == end:
            break
        constraint.advance(token)
        tokens.append(token)
        if constraint.is_over:
            break
    return tokens


def test_only_marks_are_decoded(known):
    output_format, _, end, tokenizer = known
    other = tokenizer.special_tokens["<|other|>"]
    marks = [text for text in HARMONY if text in tokenizer.special_tokens]
    tokens = [tokenizer.special_tokens[text] for text in marks]
    assert output_format.decoder.decode([other, *tokens, end]) == "".join(marks)


@pytest.mark.parametrize("budget", [0, 5])
def test_a_call_follows_reasoning_within_its_budget(known, budget):
    output_format, maker, end, tokenizer = known
    forms = output_format.call_forms(FUNCTIONS, name="find")
    start = tokenizer.encode(output_format.thinking.start, special=False)
    prompt = tokenizer.encode("hello", special=False)
    constraint = output_format.constraint(maker, prompt, forms, ends=[end], budget=budget)
    for token in start:  # the answer opens its reasoning
        assert constraint.mask(torch.zeros(end + 1))[token] == 0
        constraint.advance(token)
    letter = tokenizer.encode("h", special=False)
    tokens = [*start, *written(constraint, end, prefer=letter)]
    parser = output_format.parser(prompt, FUNCTIONS)
    parser.take(output_format.decoder.decode(tokens))
    parser.end()
    (call,) = parser.parsed.calls
    assert json.loads(call.arguments)["n"] in (1, 2)
    assert parser.parsed.reasoning == "h" * budget
    assert parser.parsed.content == ""


def test_a_prompt_that_opens_the_reasoning_is_noted(known):
    output_format, maker, end, tokenizer = known
    start = output_format.thinking.start
    opened = tokenizer.encode(f"hello {start}\n", special=False)
    assert output_format.is_thinking(opened)
    assert not output_format.is_thinking(tokenizer.encode(f"hello {start} no", special=False))
    form = Form.of_regex("yes")
    constraint = output_format.constraint(maker, opened, form, ends=[end], budget=2)
    parser = output_format.parser(opened)
    letter = tokenizer.encode("h", special=False)
    parser.take(output_format.decoder.decode(written(constraint, end, prefer=letter)))
    parser.end()
    assert (parser.parsed.reasoning, parser.parsed.content) == ("hh", "yes")
    assert output_format.constraint(maker, opened, None, ends=[end]) is None
